/* Functions that forward and backward pass of attention share. A template: T, I, LANES and NAME are set. */
#ifndef SAR_ROW_BYTES
#define SAR_ROW_BYTES 512
#endif
#include "gather.inc.h"
#include "exp.inc.h"

/* s[k] = exp(s[k]) for k < n; up to the next whole vector s is set to 0, so its size is a multiple of LANES. */
SAR_INLINE void NAME(exp_all)(T *restrict s, int n)
{
    for (int k = n; k < (n + LANES - 1) / LANES * LANES; k++) s[k] = -INFINITY;
    for (T *restrict v = s; v < s + n; v += LANES) for (int u = 0; u < LANES; u++) v[u] = NAME(exp_negative)(v[u]);
}

/* Return the number of edges of one step, after which acc is corrected. If a head's part of a row is short, this is the
 * number of rows that the first-level cache holds. */
SAR_INLINE int NAME(step_edges)(int64_t heads, int64_t n_feat)
{
    int64_t edges = heads * n_feat > 0 ? 32768 / (heads * n_feat * (int64_t)sizeof(T)) : CHUNK;
    return heads == 1 || edges > CHUNK ? CHUNK : edges < 32 ? 32 : (int)edges;
}

/* Return what head `h` prefetches of a later edge's row of `n_heads` heads and `n_values` values (`prefetch` of
 * gather.inc.h): its own feature columns. If the row is short, so that heads share cache lines, or if all heads share the
 * row, the first head prefetches all of it. Prefetching a long row at once would fill the queue of cache misses. */
SAR_INLINE int64_t NAME(head_prefetch)(int64_t h, int64_t n_heads, int64_t n_values)
{
    return n_values * (int64_t)sizeof(T) > SAR_ROW_BYTES && h < n_heads ? -1 : h == 0 ? n_values * (int64_t)sizeof(S) : 0;
}

/* Prefetch the scores, a row of `bytes`, of each of the next n edges, of which `left` remain. Scores of the edges lie far
 * apart in memory, and the first head of a step reads them all. */
SAR_INLINE void NAME(prefetch_scores)(const void *scores, int64_t bytes, const I *restrict next, int n, int64_t left)
{
    for (int k = 0; k < n && k < left; k++)
        for (int64_t b = 0; b < bytes; b += 64) SAR_PREFETCH_NEAR((const char *)scores + (int64_t)next[k] * bytes + b);
}

/* word[h % 4][k]: the random word of edge k for heads h = 4*group .. 4*group + 3. The edge's id is src_id * n_nodes
 * + dst_id. */
SAR_INLINE void NAME(edge_words)(uint32_t word[4][CHUNK], const uint64_t *restrict edge_id, int n, uint32_t group, uint64_t key)
{
    for (int k = 0; k < n; k++) {
        uint32_t w[4] = {(uint32_t)edge_id[k], (uint32_t)(edge_id[k] >> 32), group, 0};
        philox4x32(w, (uint32_t)key, (uint32_t)(key >> 32));
        word[0][k] = w[0], word[1][k] = w[1], word[2][k] = w[2], word[3][k] = w[3];
    }
}
