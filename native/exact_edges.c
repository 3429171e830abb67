/* Sums over edges on a grid (exact.inc.h): the same bits for any blocks, order of edges, threads and instruction set. */
#ifndef T
#include "philox.h"
#define EXACT_AHEAD 12      /* edges on that a row is prefetched */
#define KERNEL "exact_edges.c"
#include "each_index.h"
#else
#include "attend.inc.h"
#include "exact.inc.h"

/* Prefetch `bytes` of the row of x that edge e reads, if there is such an edge. */
SAR_INLINE void NAME(row_ahead)(const T *x, int64_t stride, const I *restrict indices, int64_t e, int64_t n_edges)
{
    if (e >= n_edges) return;
    const char *row = (const char *)(x + (indices ? (int64_t)indices[e] : e) * stride);
    for (int64_t b = 0; b < stride * (int64_t)sizeof(T); b += 64) SAR_PREFETCH_NEAR(row + b);
}

/* out[r,:,h,:] += grid(weight[eid[e],h] * src_scale[c] * x[c,h,:]) over the edges e of row i, r and c as in spmm.c
 *
 * inputs   a: dst_scale is not read; grid (LEVELS, n_heads, n_feat)
 * output   out (n_out, LEVELS, n_heads, n_feat), accumulated
 * cost     O(n_edges * n_heads * n_feat)
 */
int NAME(sar_exact_spmm_forward)(double *restrict out, const double *restrict grid, const NAME(sar_sum) *a)
{
    const int64_t *restrict indptr = a->csr.indptr, n_rows = a->csr.n_rows, n_edges = indptr[n_rows];
    const int64_t n_feat = a->n_feat, n_heads = a->n_heads, stride = n_heads * n_feat;
    const I *restrict indices = a->csr.indices, *restrict rows = a->csr.rows, *restrict eid = a->csr.eid;
    int team = sar_team((n_edges - indptr[0]) * stride), n_parts = team == 1 ? 1 : team * SAR_PARTS;
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int part = 0; part < n_parts; part++) {
        int64_t end = sar_split_rows(indptr, n_rows, part + 1, n_parts);
        for (int64_t i = sar_split_rows(indptr, n_rows, part, n_parts); i < end; i++) {
            double *restrict to = out + (rows ? (int64_t)rows[i] : i) * LEVELS * stride;
            for (int64_t e = indptr[i]; e < indptr[i + 1]; e++) {
                int64_t c = indices ? (int64_t)indices[e] : e;
                double scale = a->src_scale ? (double)a->src_scale[c] : 1;
                NAME(row_ahead)(a->x, stride, indices, e + EXACT_AHEAD, n_edges);
                if (!a->weight) {
                    NAME(add_on_grid)(to, grid, stride, scale, a->x + c * stride, stride);
                    continue;
                }
                const T *restrict weight = a->weight + (eid ? (int64_t)eid[e] : e) * n_heads;
                for (int64_t h = 0; h < n_heads; h++)
                    NAME(add_on_grid)(to + h * n_feat, grid + h * n_feat, stride, scale * (double)weight[h],
                                      a->x + c * stride + h * n_feat, n_feat);
            }
        }
    }
    return SAR_OK;
}

/* The edges e .. e + n of row i of sar_exact_attend_forward. */
static void NAME(exact_attend_step)(double *restrict l, double *restrict acc, const double *restrict grid_l, const double *restrict grid,
                                    const T *restrict m, const T *restrict dst, const NAME(sar_attention) *a, int64_t to, int64_t e, int n)
{
    const int64_t n_heads = a->n_heads, n_feat = a->n_feat, stride = n_heads * n_feat, z_stride = a->z_heads * n_feat;
    const I *restrict col = a->csr.indices + e;
    const int64_t *restrict src_ids = a->dropout.src_ids;
    const T slope = (T)a->slope, keep = (T)(1 / (1 - a->dropout.p)), one = 1;
    const uint32_t threshold = philox_threshold(a->dropout.p);
    T s[CHUNK], coef[CHUNK];
    uint64_t edge_id[CHUNK];
    uint32_t word[4][CHUNK];
    if (src_ids)
        for (int k = 0; k < n; k++) edge_id[k] = (uint64_t)src_ids[col[k]] * a->dropout.n_nodes + (uint64_t)a->dropout.dst_ids[to];
    for (int64_t h = 0; h < n_heads; h++) {
        const T dst_ih = dst[to * n_heads + h], top = m[to * n_heads + h];
        double *restrict l_ih = l + to * LEVELS * n_heads + h;
        for (int k = 0; k < n; k++) {
            T pre = a->src[(int64_t)col[k] * n_heads + h] + dst_ih;
            s[k] = (pre > 0 ? pre : slope * pre) - top;
        }
        NAME(exp_all)(s, n);
        for (int k = 0; k < n; k++) NAME(add_on_grid)(l_ih, grid_l + h, n_heads, (double)s[k], &one, 1);
        if (src_ids && h % 4 == 0) NAME(edge_words)(word, edge_id, n, (uint32_t)(h / 4), a->dropout.key);
        for (int k = 0; k < n; k++) coef[k] = !src_ids ? s[k] : word[h % 4][k] < threshold ? 0 : s[k] * keep;
        double *restrict sum = acc + to * LEVELS * stride + h * n_feat;
        for (int k = 0; k < n; k++) {
            const T *restrict z = a->z + (int64_t)col[k] * z_stride + (a->z_heads == 1 ? 0 : h * n_feat);
            if (h == 0 && k + EXACT_AHEAD < n) NAME(row_ahead)(a->z, z_stride, col, k + EXACT_AHEAD, n);
            NAME(add_on_grid)(sum, grid + h * n_feat, stride, (double)coef[k], z, n_feat);
        }
    }
}

/* The sums of attention whose row maxima are known: l += grid(exp(s - m)), acc += grid(mask/(1-p) exp(s - m) z[j])
 *
 * inputs   m, dst (n_out, n_heads): the largest score of each row over all blocks; a; grid_l (LEVELS, n_heads),
 *          grid (LEVELS, n_heads, n_feat)
 * output   l (n_out, LEVELS, n_heads), acc (n_out, LEVELS, n_heads, n_feat), accumulated
 * cost     O(n_edges * n_heads * n_feat)
 */
int NAME(sar_exact_attend_forward)(double *restrict l, double *restrict acc, const double *restrict grid_l, const double *restrict grid,
                                   const T *restrict m, const T *restrict dst, const NAME(sar_attention) *a)
{
    const int64_t *restrict indptr = a->csr.indptr, n_rows = a->csr.n_rows;
    const I *restrict rows = a->csr.rows;
    int team = sar_team((indptr[n_rows] - indptr[0]) * a->n_heads * (a->n_feat + 16)), n_parts = team == 1 ? 1 : team * SAR_PARTS;
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int part = 0; part < n_parts; part++) {
        int64_t end = sar_split_rows(indptr, n_rows, part + 1, n_parts);
        for (int64_t i = sar_split_rows(indptr, n_rows, part, n_parts); i < end; i++)
            for (int64_t e = indptr[i]; e < indptr[i + 1]; e += CHUNK) {
                int n = indptr[i + 1] - e < CHUNK ? (int)(indptr[i + 1] - e) : CHUNK;
                NAME(exact_attend_step)(l, acc, grid_l, grid, m, dst, a, rows ? (int64_t)rows[i] : i, e, n);
            }
    }
    return SAR_OK;
}

/* The edges e .. e + n of source row j of sar_exact_attend_backward; sums are this thread's. */
static void NAME(exact_attend_back)(double *restrict dz, double *restrict dsrc, double *restrict sums, const double *restrict grid_z,
                                    const double *restrict grid_s, const T *restrict ends, const T *restrict g,
                                    const NAME(sar_attention) *a, int64_t j, int64_t e, int n)
{
    const int64_t n_heads = a->n_heads, n_feat = a->n_feat, stride = n_heads * n_feat, z_stride = a->z_heads * n_feat;
    const I *restrict col = a->csr.indices + e;
    const int64_t *restrict src_ids = a->dropout.src_ids;
    const T slope = (T)a->slope, keep = (T)(1 / (1 - a->dropout.p));
    const uint32_t threshold = philox_threshold(a->dropout.p);
    T alpha[CHUNK], coef[CHUNK], dot[CHUNK], slope_at[CHUNK];
    uint64_t edge_id[CHUNK];
    uint32_t word[4][CHUNK];
    if (src_ids)
        for (int k = 0; k < n; k++) edge_id[k] = (uint64_t)src_ids[j] * a->dropout.n_nodes + (uint64_t)a->dropout.dst_ids[col[k]];
    for (int64_t h = 0; h < n_heads; h++) {
        const int64_t at_z = a->z_heads == 1 ? 0 : h * n_feat;
        for (int k = 0; k < n; k++) {
            const T *restrict at = ends + ((int64_t)col[k] * n_heads + h) * 4, pre = a->src[j * n_heads + h] + at[0];
            slope_at[k] = pre > 0 ? 1 : slope;
            alpha[k] = slope_at[k] * pre - at[1];
        }
        NAME(exp_all)(alpha, n);
        for (int k = 0; k < n; k++) alpha[k] *= ends[((int64_t)col[k] * n_heads + h) * 4 + 2];
        if (src_ids && h % 4 == 0) NAME(edge_words)(word, edge_id, n, (uint32_t)(h / 4), a->dropout.key);
        for (int k = 0; k < n; k++) coef[k] = !src_ids ? alpha[k] : word[h % 4][k] < threshold ? 0 : alpha[k] * keep;
        const NAME(gather) edges = {.x = g + h * n_feat, .index = col, .coef = coef, .stride = stride, .n = n, .n_ahead = n,
                                    .near = 1, .prefetch = NAME(head_prefetch)(h, n_heads, stride)};
        NAME(gather_dot)(0, dot, NULL, a->z + j * z_stride + at_z, &edges, n_feat, 0);
        double *restrict dz_j = dz + j * LEVELS * z_stride + at_z, *restrict dsrc_j = dsrc + j * LEVELS * n_heads + h;
        for (int k = 0; k < n; k++) {
            const T *restrict delta = ends + ((int64_t)col[k] * n_heads + h) * 4 + 3, one = 1;
            NAME(add_on_grid)(dz_j, grid_z + at_z, z_stride, (double)coef[k], g + (int64_t)col[k] * stride + h * n_feat, n_feat);
            double de = (double)((coef[k] * dot[k] - alpha[k] * *delta) * slope_at[k]);
            NAME(add_on_grid)(dsrc_j, grid_s + h, n_heads, de, &one, 1);
            NAME(add_on_grid)(sums + (int64_t)col[k] * LEVELS * n_heads + h, grid_s + h, n_heads, de, &one, 1);
        }
    }
}

/* The gradients of attention, as sar_attend_backward has them, on grids; each thread adds to sums of its own.
 *
 * inputs   ends (n_dst, n_heads, 4), g (n_dst, n_heads, n_feat), a (rows are sources): as in attend_backward.c;
 *          grid_z (LEVELS, z_heads, n_feat), grid_s (LEVELS, n_heads)
 * output   dz (n_src, LEVELS, z_heads, n_feat), dsrc (n_src, LEVELS, n_heads), sums (n_threads, n_dst, LEVELS, n_heads),
 *          accumulated
 * cost     O(n_edges * n_heads * n_feat)
 */
int NAME(sar_exact_attend_backward)(double *restrict dz, double *restrict dsrc, double *restrict sums, const double *restrict grid_z,
                                    const double *restrict grid_s, const T *restrict ends, const T *restrict g,
                                    const NAME(sar_attention) *a, int64_t n_threads, int64_t n_dst)
{
    const int64_t *restrict indptr = a->csr.indptr, n_rows = a->csr.n_rows, n_parts = n_threads == 1 ? 1 : n_threads * SAR_PARTS;
#pragma omp parallel for num_threads((int)n_threads) schedule(dynamic)
    for (int64_t part = 0; part < n_parts; part++) {
        int64_t end = sar_split_rows(indptr, n_rows, part + 1, n_parts);
        double *restrict own = sums + sar_team_rank() * n_dst * LEVELS * a->n_heads;
        for (int64_t j = sar_split_rows(indptr, n_rows, part, n_parts); j < end; j++)
            for (int64_t e = indptr[j]; e < indptr[j + 1]; e += CHUNK) {
                int n = indptr[j + 1] - e < CHUNK ? (int)(indptr[j + 1] - e) : CHUNK;
                NAME(exact_attend_back)(dz, dsrc, own, grid_z, grid_s, ends, g, a, j, e, n);
            }
    }
    return SAR_OK;
}
#endif
