/* Fused graph attention (GAT, SAR Eq. 3 and sec. 3.3): coefficients are made on the fly and never stored per edge.
 * The softmax is online (SAR sec. 3.4): a block of edges updates (m, l, acc) in place, whatever blocks came before. */
#ifndef T
#include "philox.h"
#define KERNEL "attend.c"
#include "each_index.h"
#else
#ifndef SAR_ROW_BYTES
#define SAR_ROW_BYTES 512
#endif
#include "gather.inc.h"
#include "exp.inc.h"

/* s[k] = exp(s[k]) for k < n; up to the next whole vector s is set to 0, so its size is a multiple of LANES. */
SAR_INLINE void NAME(exp_all)(T *restrict s, int n)
{
    for (int k = n; k < (n + LANES - 1) / LANES * LANES; k++) s[k] = -INFINITY;
    for (int k = 0; k < n; k += LANES)
        for (int u = 0; u < LANES; u++) s[k + u] = NAME(exp_negative)(s[k + u]);
}

/* Sum of s, padded as exp_all leaves it, in an order that no instruction set changes. */
SAR_INLINE T NAME(sum_all)(const T *restrict s, int n)
{
    T t[LANES] = {0};
    for (int k = 0; k < n; k += LANES) for (int u = 0; u < LANES; u++) t[u] += s[k + u];
    for (int half = LANES / 2; half; half /= 2) for (int u = 0; u < half; u++) t[u] += t[u + half];
    return t[0];
}

/* Edges of one step, after which acc is corrected. Where a head's part of a row is short it is as many rows as the first-level cache
 * holds. */
SAR_INLINE int NAME(step_edges)(int64_t heads, int64_t n_feat)
{
    int64_t edges = heads * n_feat > 0 ? 32768 / (heads * n_feat * (int64_t)sizeof(T)) : CHUNK;
    return heads == 1 || edges > CHUNK ? CHUNK : edges < 32 ? 32 : (int)edges;
}

/* Forward the heads of a row of more than SAR_ROW_BYTES take their steps by so many: with dropout a multiple of 4, as one random block
 * serves 4 heads. What is left over takes steps of its own. */
SAR_INLINE int64_t NAME(heads_together)(int64_t n_heads, int64_t n_feat, int dropout)
{
    int64_t head_bytes = n_feat * (int64_t)sizeof(T);
    int64_t heads = head_bytes * n_heads <= SAR_ROW_BYTES || head_bytes == 0 ? n_heads : SAR_ROW_BYTES / head_bytes;
    if (heads < 1) heads = 1;
    if (dropout) heads = (heads + 3) / 4 * 4;
    return heads < n_heads ? heads : n_heads;
}

/* What head `h` prefetches of a later edge's row (gather.inc.h): its own columns; of short rows, whose heads share cache lines, the first
 * head all. A long row at once would fill the queue of misses, and arithmetic would wait for it. */
SAR_INLINE int64_t NAME(head_prefetch)(int64_t h, int64_t row_bytes)
{
    return row_bytes > SAR_ROW_BYTES ? -1 : h == 0 ? row_bytes : 0;
}

/* Prefetch the row of `bytes` of each of the next n of `left` edges: scores lie apart, and the first head of a step reads all. */
SAR_INLINE void NAME(prefetch_scores)(const void *scores, int64_t bytes, const I *restrict next, int n, int64_t left)
{
    for (int k = 0; k < n && k < left; k++)
        for (int64_t b = 0; b < bytes; b += 64) SAR_PREFETCH_NEAR((const char *)scores + (int64_t)next[k] * bytes + b);
}

/* word[h % 4][k]: the random word of edge k for heads h = 4*group .. 4*group + 3. The edge's id is src_id * n_nodes + dst_id. */
SAR_INLINE void NAME(edge_words)(uint32_t word[4][CHUNK], const uint64_t *restrict edge_id, int n, uint32_t group, uint64_t key)
{
    for (int k = 0; k < n; k++) {
        uint32_t w[4] = {(uint32_t)edge_id[k], (uint32_t)(edge_id[k] >> 32), group, 0};
        philox4x32(w, (uint32_t)key, (uint32_t)(key >> 32));
        word[0][k] = w[0], word[1][k] = w[1], word[2][k] = w[2], word[3][k] = w[3];
    }
}

/* The state before any edge, of part `part` of n_parts of the rows. */
static void NAME(start_rows)(T *restrict m, T *restrict l, T *restrict acc, const NAME(sar_attention) *a, int64_t part, int64_t n_parts)
{
    const int64_t *restrict indptr = a->csr.indptr, n_rows = a->csr.n_rows, n_heads = a->n_heads;
    const int64_t begin = sar_split_rows(indptr, n_rows, part, n_parts), end = sar_split_rows(indptr, n_rows, part + 1, n_parts);
    for (int64_t i = begin; i < end; i++) {
        int64_t first = (a->csr.rows ? (int64_t)a->csr.rows[i] : i) * n_heads;
        for (int64_t ih = first; ih < first + n_heads; ih++) m[ih] = -INFINITY, l[ih] = 0;
        memset(acc + first * a->n_feat, 0, (size_t)(n_heads * a->n_feat) * sizeof(T));
    }
}

/* Part `part` of n_parts of the rows and the heads first .. last of sar_attend_forward. */
static void NAME(attend_rows)(T *restrict m, T *restrict l, T *restrict acc, const T *restrict dst, const NAME(sar_attention) *a,
                              int step, int64_t part, int64_t n_parts, int64_t first, int64_t last)
{
    const int64_t *restrict indptr = a->csr.indptr, n_rows = a->csr.n_rows;
    const int64_t n_heads = a->n_heads, n_feat = a->n_feat, stride = n_heads * n_feat;
    const int64_t begin = sar_split_rows(indptr, n_rows, part, n_parts), end = sar_split_rows(indptr, n_rows, part + 1, n_parts);
    const int near = NAME(is_near)(a->n_src, stride);
    const I *restrict indices = a->csr.indices, *restrict rows = a->csr.rows;
    const T *restrict src = a->src, slope = (T)a->slope;
    const int64_t *restrict src_ids = a->dropout.src_ids, *restrict dst_ids = a->dropout.dst_ids;
    const uint64_t n_nodes = a->dropout.n_nodes, key = a->dropout.key;
    const uint32_t threshold = philox_threshold(a->dropout.p);
    const T keep = (T)(1 / (1 - a->dropout.p));
    T s[CHUNK];
    uint64_t edge_id[CHUNK];
    uint32_t word[4][CHUNK];

    for (int64_t i = begin; i < end; i++)
    for (int64_t e = indptr[i]; e < indptr[i + 1]; e += step) {
        int n = indptr[i + 1] - e < step ? (int)(indptr[i + 1] - e) : step;
        const I *restrict col = indices + e;
        int64_t to = rows ? (int64_t)rows[i] : i;
        NAME(prefetch_scores)(src, n_heads * (int64_t)sizeof(T), col + n, n, indptr[n_rows] - e - n);
        if (src_ids)
            for (int k = 0; k < n; k++) edge_id[k] = (uint64_t)src_ids[col[k]] * n_nodes + (uint64_t)dst_ids[to];

        for (int64_t h = first; h < last; h++) {
            int64_t ih = to * n_heads + h;
            T *restrict acc_ih = acc + ih * n_feat;
            T top = m[ih], dst_ih = dst[ih];
            for (int k = 0; k < n; k++) s[k] = src[(int64_t)col[k] * n_heads + h];      /* apart: with a branch it would not */
            for (int k = 0; k < n; k++) {                                                /* be vectors */
                T pre = s[k] + dst_ih;
                s[k] = pre > 0 ? pre : slope * pre;
            }
#pragma omp simd reduction(max : top)
            for (int k = 0; k < n; k++) top = s[k] > top ? s[k] : top;

            /* All scores so far are -inf: any finite shift gives them the weight 0 instead of NaN. */
            T shift = top == -INFINITY ? 0 : top;
            for (int k = 0; k < n; k++) s[k] -= shift;
            NAME(exp_all)(s, n);

            /* The maximum has moved: correct numerator and denominator by exp(old - new). Both are 0 where there was none. */
            T correction = m[ih] == -INFINITY ? 1 : NAME(exp_negative)(m[ih] - shift);
            if (!(correction == 1)) for (int64_t f = 0; f < n_feat; f++) acc_ih[f] *= correction;
            l[ih] = l[ih] * correction + NAME(sum_all)(s, n);
            m[ih] = top;

            if (src_ids) {
                if (h % 4 == 0) NAME(edge_words)(word, edge_id, n, (uint32_t)(h / 4), key);
                for (int k = 0; k < n; k++) {                       /* a product in the choice would be a branch */
                    T kept = s[k] * keep;
                    s[k] = word[h % 4][k] < threshold ? 0 : kept;
                }
            }
            const NAME(gather) edges = {.x = a->z + h * n_feat, .index = col, .coef = s, .stride = stride, .n = n,
                                        .n_ahead = indptr[n_rows] - e, .near = near,
                                        .prefetch = NAME(head_prefetch)(h, stride * (int64_t)sizeof(T))};
            NAME(gather_sum)(acc_ih, &edges, n_feat, 1, 0);
        }
    }
}

/* One block of edges of the online softmax:
 *   i = rows[row], or the row;  s_e = leaky_relu(src[j,h] + dst[i,h]);  m' = max(m, max_e s_e)
 *   l = l * exp(m - m') + sum_e exp(s_e - m');  acc = acc * exp(m - m') + sum_e mask_e/(1-p) * exp(s_e - m') * z[j,h,:]
 *
 * inputs   dst (n_out, n_heads); a, as prototypes_index.h has it: indices are the sources j
 * output   m, l (n_out, n_heads), acc (n_out, n_heads, n_feat): updated; accumulate = 0: those of the rows i start at -inf, 0, 0, whatever
 *          they hold. Dropout leaves m and l alone.
 * cost     O(n_edges * n_heads * n_feat); the stack holds CHUNK edges, nothing is kept per edge. acc is corrected once a step.
 */
int NAME(sar_attend_forward)(T *restrict m, T *restrict l, T *restrict acc, const T *restrict dst, const NAME(sar_attention) *a,
                             int accumulate)
{
    const int64_t *restrict indptr = a->csr.indptr, n_heads = a->n_heads, n_feat = a->n_feat;
    int64_t together = NAME(heads_together)(n_heads, n_feat, a->dropout.src_ids != NULL), rest = n_heads ? n_heads % together : 0;
    int step = NAME(step_edges)(together, n_feat), rest_step = NAME(step_edges)(rest, n_feat);
    int team = sar_team((indptr[a->csr.n_rows] - indptr[0]) * n_heads * (n_feat + 16));
    int64_t n_parts = team == 1 ? 1 : team * SAR_PARTS;
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
    for (int64_t part = 0; part < n_parts; part++) {
        if (!accumulate) NAME(start_rows)(m, l, acc, a, part, n_parts);
        NAME(attend_rows)(m, l, acc, dst, a, step, part, n_parts, 0, n_heads - rest);
        if (rest) NAME(attend_rows)(m, l, acc, dst, a, rest_step, part, n_parts, n_heads - rest, n_heads);
    }
    return SAR_OK;
}

/* Part `part` of n_parts of the source rows of sar_attend_backward; sums is this thread's own. */
static void NAME(attend_backward_rows)(T *restrict dz, T *restrict dsrc, double *restrict sums, const T *restrict ends,
                                       const T *restrict g, const NAME(sar_attention) *a, int accumulate, int near, int64_t part,
                                       int64_t n_parts)
{
    const int64_t *restrict indptr = a->csr.indptr, n_rows = a->csr.n_rows;
    const int64_t n_heads = a->n_heads, n_feat = a->n_feat, stride = n_heads * n_feat;
    const int64_t begin = sar_split_rows(indptr, n_rows, part, n_parts), end = sar_split_rows(indptr, n_rows, part + 1, n_parts);
    const I *restrict indices = a->csr.indices;
    const T slope = (T)a->slope;
    const int step = NAME(step_edges)(n_heads, n_feat);
    const int64_t *restrict src_ids = a->dropout.src_ids, *restrict dst_ids = a->dropout.dst_ids;
    const uint64_t n_nodes = a->dropout.n_nodes, key = a->dropout.key;
    const uint32_t threshold = philox_threshold(a->dropout.p);
    const T keep = (T)(1 / (1 - a->dropout.p));
    T alpha[CHUNK], coef[CHUNK], dot[CHUNK], slope_at[CHUNK], m_at[CHUNK], scale_at[CHUNK], delta_at[CHUNK];
    uint64_t edge_id[CHUNK];
    uint32_t word[4][CHUNK];

    if (!accumulate) {
        memset(dz + begin * stride, 0, (size_t)((end - begin) * stride) * sizeof(T));
        memset(dsrc + begin * n_heads, 0, (size_t)((end - begin) * n_heads) * sizeof(T));
    }
    for (int64_t j = begin; j < end; j++)
    for (int64_t e = indptr[j]; e < indptr[j + 1]; e += step) {
        int n = indptr[j + 1] - e < step ? (int)(indptr[j + 1] - e) : step;
        const I *restrict col = indices + e;
        NAME(prefetch_scores)(ends, n_heads * 4 * (int64_t)sizeof(T), col + n, n, indptr[n_rows] - e - n);
        NAME(prefetch_scores)(sums, n_heads * (int64_t)sizeof(double), col + n, n, indptr[n_rows] - e - n);
        if (src_ids)
            for (int k = 0; k < n; k++) edge_id[k] = (uint64_t)src_ids[j] * n_nodes + (uint64_t)dst_ids[col[k]];

        for (int64_t h = 0; h < n_heads; h++) {
            int64_t jh = j * n_heads + h;
            T src_jh = a->src[jh];
            for (int k = 0; k < n; k++) {
                const T *restrict at = ends + ((int64_t)col[k] * n_heads + h) * 4;
                alpha[k] = at[0], m_at[k] = at[1], scale_at[k] = at[2], delta_at[k] = at[3];
            }
            for (int k = 0; k < n; k++) {
                T pre = src_jh + alpha[k];
                slope_at[k] = pre > 0 ? 1 : slope;
                alpha[k] = slope_at[k] * pre - m_at[k];
            }
            NAME(exp_all)(alpha, n);
            for (int k = 0; k < n; k++) alpha[k] *= scale_at[k];

            /* coef = alpha k for dz; de = alpha (k t - delta) slope = (coef t - alpha delta) slope. */
            if (src_ids && h % 4 == 0) NAME(edge_words)(word, edge_id, n, (uint32_t)(h / 4), key);
            for (int k = 0; k < n; k++) coef[k] = !src_ids ? alpha[k] : word[h % 4][k] < threshold ? 0 : alpha[k] * keep;
            const NAME(gather) edges = {.x = g + h * n_feat, .index = col, .coef = coef, .stride = stride, .n = n,
                                        .n_ahead = indptr[n_rows] - e, .near = near,
                                        .prefetch = NAME(head_prefetch)(h, stride * (int64_t)sizeof(T))};
            NAME(gather_dot)(1, dot, dz + jh * n_feat, a->z + jh * n_feat, &edges, n_feat);
            double sum = 0;
            for (int k = 0; k < n; k++) dot[k] = (coef[k] * dot[k] - alpha[k] * delta_at[k]) * slope_at[k];
            for (int k = 0; k < n; k++) {
                sums[(int64_t)col[k] * n_heads + h] += (double)dot[k];
                sum += (double)dot[k];
            }
            dsrc[jh] += (T)sum;
        }
    }
}

/* Gradients of the finished attention, walking the transpose (row j is a source, a's indices its destinations i):
 *   alpha = exp(s - m[i,h]) / l[i,h];  t = g[i,h,:] . z[j,h,:];  k = mask/(1-p)
 *   dz[j,h,:] += alpha k g[i,h,:];  de = alpha (k t - delta[i,h]) leaky_relu'(s_pre);  dsrc[j,h] += de;  sums[thread,i,h] += de
 *
 * inputs   ends (n_dst, n_heads, 4): dst, m, 1 / l, delta = sum_d g * out; g (n_dst, n_heads, n_feat)
 *          side by side, so that an edge reads one cache line for them; m and 1 / l apart, as m + log l loses l's digits beside a large m
 * output   dz (n_src, n_heads, n_feat), dsrc (n_src, n_heads): accumulated, or overwritten; sums (n_threads, n_dst, n_heads): accumulated
 *          sums: each thread's part of ddst, which sar_attend_backward_finish adds. float64, as these sums cancel.
 * cost     O(n_edges * n_heads * n_feat)
 */
int NAME(sar_attend_backward)(T *restrict dz, T *restrict dsrc, double *restrict sums, const T *restrict ends, const T *restrict g,
                              const NAME(sar_attention) *a, int accumulate, int64_t n_threads, int64_t n_dst)
{
    const int near = NAME(is_near)(n_dst, a->n_heads * a->n_feat);
    int64_t n_parts = n_threads == 1 ? 1 : n_threads * SAR_PARTS;
#pragma omp parallel for num_threads((int)n_threads) schedule(static, 1)   /* not dynamic: sums must not depend on the clock */
    for (int64_t part = 0; part < n_parts; part++)
        NAME(attend_backward_rows)(dz, dsrc, sums + sar_team_rank() * n_dst * a->n_heads, ends, g, a, accumulate, near, part,
                                   n_parts);
    return SAR_OK;
}
#endif
