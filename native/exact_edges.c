/* Sums over edges on a grid (exact.inc.h): the same bits for any blocks, order of edges, threads and instruction set. */
#ifndef T
#include "philox.h"
#define EXACT_AHEAD 16      /* edges on that a row is prefetched */
#define EXACT_BYTES 8192    /* of the rows that are summed by some columns, then by others: what is near */
#ifdef __clang__
#define FUSED
#pragma clang fp contract(fast)
#else
#define FUSED __attribute__((optimize("fp-contract=fast")))
#endif
#define NO_TIE (1 + 0x1p-52)
#define KERNEL "exact_edges.c"
#include "each_index.h"
#else
#include "attend.inc.h"
#include "exact.inc.h"

/* Prefetch the row of x, of `stride` values, that edge k + EXACT_AHEAD reads, if that edge is among the n_ahead edges. */
SAR_INLINE void NAME(row_ahead)(const T *restrict x, int64_t stride, const I *restrict col, int64_t k, int64_t n_ahead)
{
    if (k + EXACT_AHEAD >= n_ahead) return;
    const char *row = (const char *)(x + (int64_t)col[k + EXACT_AHEAD] * stride);
    for (int64_t b = 0; b < stride * (int64_t)sizeof(T); b += 64) SAR_PREFETCH(row + b);
}

#if LEVELS == 1
/* to[f] += sum_k c[k] x[col[k],f], f < n_feat, of n_edges edges; `begins`: m is added before, `ends`: taken away after. A product
 * of c with 24 bits of x, whose c is no wider than 26 bits before it was multiplied by NO_TIE, is no tie of the grid, so it is added
 * in one rounding, fused or not. */
FUSED SAR_INLINE void NAME(add_edges)(const int n_edges, const int begins, const int ends, double *restrict to, const double *restrict m,
                                      const double *restrict c, const T *restrict x, int64_t stride, const I *restrict col,
                                      int64_t n_feat)
{
    const T *row[4];
    for (int k = 0; k < n_edges; k++) row[k] = x + (int64_t)col[k] * stride;
    for (int64_t f = 0; f < n_feat; f++) {
        double sum = begins ? to[f] + m[f] : to[f];
        for (int k = 0; k < n_edges; k++) sum += c[k] * (double)row[k][f];
        to[f] = ends ? sum - m[f] : sum;
    }
}

/* to[f] += sum_k c[k] x[col[k],f] on the grid m, f < n_feat, of n edges. A second level, of double, stands `apart` values behind
 * the first. Rows of later edges are prefetched, of the n_ahead edges from col on; 0: they are near. */
FUSED static void NAME(sum_rows)(double *restrict to, const double *restrict m, int64_t apart, const double *restrict c,
                                 const T *restrict x, int64_t stride, const I *restrict col, int n, int64_t n_ahead, int64_t n_feat)
{
    (void)apart;
#define ADD(n_edges, begins, ends) NAME(add_edges)(n_edges, begins, ends, to, m, c, x, stride, col, n_feat)
#define ADD_LAST(begins) \
    if (n == 4) ADD(4, begins, 1); \
    else if (n == 3) ADD(3, begins, 1); \
    else if (n == 2) ADD(2, begins, 1); \
    else if (n == 1) ADD(1, begins, 1);
    for (int begins = 1;; begins = 0, n -= 4, n_ahead -= 4, c += 4, col += 4) {
        for (int k = 0; k < 4 && k < n; k++) NAME(row_ahead)(x, stride, col, k, n_ahead);
        if (n <= 4 && begins) { ADD_LAST(1) return; }
        if (n <= 4) { ADD_LAST(0) return; }
        if (begins) ADD(4, 1, 0);
        else ADD(4, 0, 0);
    }
#undef ADD
#undef ADD_LAST
}
#else
static void NAME(sum_rows)(double *restrict to, const double *restrict m, int64_t apart, const double *restrict c,
                           const T *restrict x, int64_t stride, const I *restrict col, int n, int64_t n_ahead, int64_t n_feat)
{
    for (int k = 0; k < n; k++) {
        NAME(row_ahead)(x, stride, col, k, n_ahead);
        NAME(add_on_grid)(to, m, apart, c[k], x + (int64_t)col[k] * stride, n_feat);
    }
}
#endif

/* What `sum_rows` takes for a coefficient that is exact in T. */
SAR_INLINE double NAME(by)(T c) { return LEVELS == 1 ? (double)c * NO_TIE : (double)c; }

/* sum += sum_k x[k] on the grids m; a sum and a grid of the second level stand `apart` values behind the first. */
SAR_INLINE void NAME(sum_values)(double *restrict sum, const double *restrict m, int64_t apart, const T *restrict x, int n)
{
#if LEVELS == 1
    (void)apart;
    double lane[8];
    for (int i = 0; i < 8; i++) lane[i] = *m;
    int k = 0;
    for (; k + 8 <= n; k += 8) for (int i = 0; i < 8; i++) lane[i] += (double)x[k + i] * NO_TIE;
    for (; k < n; k++) lane[0] += (double)x[k] * NO_TIE;
    double all = 0;
    for (int i = 0; i < 8; i++) all += lane[i] - *m;
    *sum += all;
#else
    const T one = 1;
    for (int k = 0; k < n; k++) NAME(add_on_grid)(sum, m, apart, (double)x[k], &one, 1);
#endif
}

/* by[k] of head h of the edges e .. e + n, whose columns are col. A product of a weight and a scale, which may be wider
 * than T, is rounded to 26 bits where T is float. */
SAR_INLINE void NAME(exact_coefficients)(double *restrict by, const NAME(sar_sum) *a, const I *restrict col, int64_t e, int n, int64_t h)
{
    const I *restrict eid = a->csr.eid;
    for (int k = 0; k < n; k++) {
        double c = a->src_scale ? (double)a->src_scale[col[k]] : 1;
        if (a->weight) c *= (double)a->weight[(eid ? (int64_t)eid[e + k] : e + k) * a->n_heads + h];
#if LEVELS == 1
        if (a->weight && a->src_scale) {
            union { double f; uint64_t i; } u = {.f = c};
            u.i &= ~(((uint64_t)1 << 27) - 1);
            c = u.f;
        }
        c *= NO_TIE;
#endif
        by[k] = c;
    }
}

/* The number of edges of a step, whose rows have at most EXACT_BYTES. */
SAR_INLINE int NAME(near_edges)(int64_t stride)
{
    int64_t n = stride ? EXACT_BYTES / (stride * (int64_t)sizeof(T)) : CHUNK;
    return n < 8 ? 8 : n > CHUNK ? CHUNK : (int)n;
}

/* sums[r,:,h,:] += grid(weight[eid[e],h] * src_scale[c] * x[c,h,:]) over the edges e of row i, r and c as in spmm.c; or, where
 * these are all edges of the rows, out[r,h,:] += scale[r] times that sum, rounded once.
 *
 * inputs   a: dst_scale is not read; grid (LEVELS, n_heads, n_feat); scale (n_out) or NULL: 1
 * output   sums (n_out, LEVELS, n_heads, n_feat), or NULL and out (n_out, n_heads, n_feat), accumulated; accumulate = 0: the
 *          rows r are overwritten; workspace of `out` (threads, LEVELS, n_heads, n_feat)
 * cost     O(n_edges * n_heads * n_feat)
 */
int NAME(sar_exact_spmm_forward)(double *restrict sums, T *restrict out, double *restrict workspace, const double *restrict grid,
                                 const double *restrict scale, const NAME(sar_sum) *a, int accumulate)
{
    const int64_t *restrict indptr = a->csr.indptr, n_rows = a->csr.n_rows, n_edges = indptr[n_rows];
    const int64_t n_feat = a->n_feat, n_heads = a->n_heads, stride = n_heads * n_feat;
    const I *restrict indices = a->csr.indices, *restrict rows = a->csr.rows;
    const int plain = !a->weight && !a->src_scale, most = a->weight ? NAME(near_edges)(stride) : CHUNK;
    int team = sar_team((n_edges - indptr[0]) * stride), n_parts = team == 1 ? 1 : team * SAR_PARTS;
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int part = 0; part < n_parts; part++) {
        int64_t end = sar_split_rows(indptr, n_rows, part + 1, n_parts);
        double *restrict own_row = workspace + sar_team_rank() * LEVELS * stride, by[CHUNK];
        I own[CHUNK];
        for (int k = 0; k < CHUNK; k++) by[k] = NAME(by)(1);
        for (int64_t i = sar_split_rows(indptr, n_rows, part, n_parts); i < end; i++) {
            const int64_t r = rows ? (int64_t)rows[i] : i;
            double *restrict to = out ? own_row : sums + r * LEVELS * stride;
            if (out || !accumulate) memset(to, 0, (size_t)(LEVELS * stride) * sizeof(double));
            for (int64_t e = indptr[i]; e < indptr[i + 1]; e += most) {
                int n = indptr[i + 1] - e < most ? (int)(indptr[i + 1] - e) : most;
                const I *restrict col = indices ? indices + e : own;
                for (int k = 0; k < n && !indices; k++) own[k] = (I)(e + k);
                for (int64_t h = 0; h < n_heads; h++) {
                    if (!plain) NAME(exact_coefficients)(by, a, col, e, n, h);
                    if (a->weight || h == 0)
                        NAME(sum_rows)(to + h * n_feat, grid + h * n_feat, stride, by, a->x + h * n_feat, stride, col, n,
                                       h || !indices ? 0 : n_edges - e, a->weight ? n_feat : stride);
                }
            }
            if (out) NAME(round_row)(out + r * stride, to, stride, scale ? scale[r] : 1, accumulate, stride);
        }
    }
    return SAR_OK;
}

/* m[h] = the largest score of head h among the edges of row `to` from e to end; 0 if all are -inf. */
SAR_INLINE void NAME(largest_scores)(T *restrict m, const T *restrict dst, const NAME(sar_attention) *a, int64_t e, int64_t end)
{
    const I *restrict col = a->csr.indices;
    const int64_t n_heads = a->n_heads, n_edges = a->csr.indptr[a->csr.n_rows];
    const T slope = (T)a->slope;
    for (int64_t first = 0; first < n_heads; first += 4) {
        const int n = n_heads - first < 4 ? (int)(n_heads - first) : 4;
        T top[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        for (int64_t k = e; k < end; k++) {
            const T *restrict score = a->src + (int64_t)col[k] * n_heads + first;
            if (k + CHUNK < n_edges) SAR_PREFETCH_NEAR(a->src + (int64_t)col[k + CHUNK] * n_heads + first);
            if (n == 4) for (int h = 0; h < 4; h++) top[h] = score[h] > top[h] ? score[h] : top[h];
            else for (int h = 0; h < n; h++) top[h] = score[h] > top[h] ? score[h] : top[h];
        }
        for (int h = 0; h < n; h++) {       /* the leaky ReLU is increasing */
            T pre = top[h] + dst[first + h], score = pre > 0 ? pre : slope * pre;
            m[first + h] = top[h] == -INFINITY || score == -INFINITY ? 0 : score;
        }
    }
}

/* Add the edges e .. e + n of row `to` of sar_exact_attend_forward to its sums l and acc. */
static void NAME(exact_attend_step)(double *restrict l, double *restrict acc, const double *restrict grid_l, const double *restrict grid,
                                    const T *restrict m, const T *restrict dst, const NAME(sar_attention) *a, int64_t to, int64_t e, int n)
{
    const int64_t n_ahead = a->csr.indptr[a->csr.n_rows] - e, n_heads = a->n_heads, n_feat = a->n_feat;
    const int64_t stride = n_heads * n_feat, z_stride = a->z_heads * n_feat;
    const I *restrict col = a->csr.indices + e;
    const int64_t *restrict src_ids = a->dropout.src_ids;
    const T slope = (T)a->slope, keep = (T)(1 / (1 - a->dropout.p));
    const uint32_t threshold = philox_threshold(a->dropout.p);
    T s[CHUNK];
    double by[CHUNK];
    uint64_t edge_id[CHUNK];
    uint32_t word[4][CHUNK];
    if (src_ids)
        for (int k = 0; k < n; k++) edge_id[k] = (uint64_t)src_ids[col[k]] * a->dropout.n_nodes + (uint64_t)a->dropout.dst_ids[to];
    for (int64_t h = 0; h < n_heads; h++) {
        const T dst_ih = dst[to * n_heads + h], top = m[to * n_heads + h];
        for (int k = 0; k < n; k++) {
            T pre = a->src[(int64_t)col[k] * n_heads + h] + dst_ih;
            s[k] = (pre > 0 ? pre : slope * pre) - top;
        }
        NAME(exp_all)(s, n);
        NAME(sum_values)(l + h, grid_l + h, n_heads, s, n);
        if (src_ids && h % 4 == 0) NAME(edge_words)(word, edge_id, n, (uint32_t)(h / 4), a->dropout.key);
        for (int k = 0; k < n; k++) by[k] = NAME(by)(!src_ids ? s[k] : word[h % 4][k] < threshold ? 0 : s[k] * keep);
        NAME(sum_rows)(acc + h * n_feat, grid + h * n_feat, stride, by, a->z + (a->z_heads == 1 ? 0 : h * n_feat), z_stride,
                       col, n, h ? 0 : n_ahead, n_feat);
    }
}

/* The sums of attention, given the row maxima: l += grid(exp(s - m)), acc += grid(mask/(1-p) exp(s - m) z[j]). Or, if
 * the CSR holds all edges of its rows, m, inverse = 1 / l and out = acc / l, rounded once.
 *
 * inputs   m (n_out, n_heads), the largest score of each row over all blocks, unless the CSR holds all edges; dst
 *          (n_out, n_heads); a; grid_l (LEVELS, n_heads), grid (LEVELS, n_heads, n_feat)
 * output   l (n_out, LEVELS, n_heads), acc (n_out, LEVELS, n_heads, n_feat), accumulated; or NULL, and
 *          m, inverse (n_out, n_heads), out (n_out, n_heads, n_feat), of which the rows of the CSR are overwritten;
 *          workspace of `out` (threads, LEVELS, n_heads, 1 + n_feat)
 * cost     O(n_edges * n_heads * n_feat)
 */
int NAME(sar_exact_attend_forward)(double *restrict l, double *restrict acc, T *restrict inverse, T *restrict out,
                                   double *restrict workspace, const double *restrict grid_l,
                                   const double *restrict grid, T *restrict m, const T *restrict dst,
                                   const NAME(sar_attention) *a)
{
    const int64_t *restrict indptr = a->csr.indptr, n_rows = a->csr.n_rows, n_heads = a->n_heads, n_feat = a->n_feat;
    const int64_t n_l = LEVELS * n_heads, n_acc = n_l * n_feat;
    const I *restrict rows = a->csr.rows;
    int team = sar_team((indptr[n_rows] - indptr[0]) * n_heads * (n_feat + 16));
    int n_parts = team == 1 ? 1 : team * SAR_PARTS;
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int part = 0; part < n_parts; part++) {
        int64_t end = sar_split_rows(indptr, n_rows, part + 1, n_parts);
        double *restrict own = workspace + sar_team_rank() * (n_l + n_acc);
        for (int64_t i = sar_split_rows(indptr, n_rows, part, n_parts); i < end; i++) {
            const int64_t r = rows ? (int64_t)rows[i] : i;
            double *restrict l_r = out ? own : l + r * n_l, *restrict acc_r = out ? own + n_l : acc + r * n_acc;
            if (out) {
                memset(own, 0, (size_t)(n_l + n_acc) * sizeof(double));
                NAME(largest_scores)(m + r * n_heads, dst + r * n_heads, a, indptr[i], indptr[i + 1]);
            }
            for (int64_t e = indptr[i]; e < indptr[i + 1]; e += CHUNK) {
                int n = indptr[i + 1] - e < CHUNK ? (int)(indptr[i + 1] - e) : CHUNK;
                NAME(exact_attend_step)(l_r, acc_r, grid_l, grid, m, dst, a, r, e, n);
            }
            for (int64_t h = 0; out && h < n_heads; h++) {
                double total = LEVELS == 1 ? l_r[h] : l_r[h] + l_r[(LEVELS - 1) * n_heads + h];
                double by = total == 0 ? 0 : 1 / total;
                NAME(round_row)(out + (r * n_heads + h) * n_feat, acc_r + h * n_feat, n_heads * n_feat, by, 0, n_feat);
                inverse[r * n_heads + h] = (T)by;
            }
        }
    }
    return SAR_OK;
}

/* Add the edges e .. e + n of row j of sar_exact_attend_backward to its sums dz and dsrc, and to this thread's sums. */
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
    double by[CHUNK];
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
        for (int k = 0; k < n; k++) by[k] = NAME(by)(coef[k]);
        NAME(sum_rows)(dz + at_z, grid_z + at_z, z_stride, by, g + h * n_feat, stride, col, n, 0, n_feat);
        for (int k = 0; k < n; k++) {
            const T delta = ends[((int64_t)col[k] * n_heads + h) * 4 + 3], one = 1;
            dot[k] = (coef[k] * dot[k] - alpha[k] * delta) * slope_at[k];
            NAME(add_on_grid)(sums + (int64_t)col[k] * LEVELS * n_heads + h, grid_s + h, n_heads, (double)dot[k], &one, 1);
        }
        NAME(sum_values)(dsrc + h, grid_s + h, n_heads, dot, n);
    }
}

/* The gradients of attention, as in sar_attend_backward, on grids. Each thread adds to sums of its own. If the block
 * holds all edges of the sources, the gradients of the sources are rounded once.
 *
 * inputs   ends (n_dst, n_heads, 4), g (n_dst, n_heads, n_feat), a (rows are sources): as in attend_backward.c;
 *          grid_z (LEVELS, z_heads, n_feat), grid_s (LEVELS, n_heads)
 * output   dz (n_src, LEVELS, z_heads, n_feat), dsrc (n_src, LEVELS, n_heads), accumulated; or NULL, and
 *          whole_z (n_src, z_heads, n_feat), whole_src (n_src, n_heads), overwritten;
 *          sums (n_threads, n_dst, LEVELS, n_heads), accumulated;
 *          workspace of whole_z (n_threads, LEVELS, n_heads + z_heads * n_feat)
 * cost     O(n_edges * n_heads * n_feat)
 */
int NAME(sar_exact_attend_backward)(double *restrict dz, double *restrict dsrc, T *restrict whole_z,
                                    T *restrict whole_src, double *restrict workspace, double *restrict sums,
                                    const double *restrict grid_z,
                                    const double *restrict grid_s, const T *restrict ends, const T *restrict g,
                                    const NAME(sar_attention) *a, int64_t n_threads, int64_t n_dst)
{
    const int64_t *restrict indptr = a->csr.indptr, n_rows = a->csr.n_rows, n_parts = n_threads == 1 ? 1 : n_threads * SAR_PARTS;
    const int64_t n_heads = a->n_heads, z_stride = a->z_heads * a->n_feat;
    const int64_t n_s = LEVELS * n_heads, n_z = LEVELS * z_stride;
#pragma omp parallel for num_threads((int)n_threads) schedule(dynamic)
    for (int64_t part = 0; part < n_parts; part++) {
        int64_t end = sar_split_rows(indptr, n_rows, part + 1, n_parts);
        double *restrict of_thread = sums + sar_team_rank() * n_dst * n_s;
        double *restrict own = workspace + sar_team_rank() * (n_s + n_z);
        for (int64_t j = sar_split_rows(indptr, n_rows, part, n_parts); j < end; j++) {
            double *restrict s_j = whole_z ? own : dsrc + j * n_s, *restrict z_j = whole_z ? own + n_s : dz + j * n_z;
            if (whole_z) memset(own, 0, (size_t)(n_s + n_z) * sizeof(double));
            for (int64_t e = indptr[j]; e < indptr[j + 1]; e += CHUNK) {
                int n = indptr[j + 1] - e < CHUNK ? (int)(indptr[j + 1] - e) : CHUNK;
                NAME(exact_attend_back)(z_j, s_j, of_thread, grid_z, grid_s, ends, g, a, j, e, n);
            }
            if (!whole_z) continue;
            NAME(round_row)(whole_z + j * z_stride, z_j, z_stride, 1, 0, z_stride);
            NAME(round_row)(whole_src + j * n_heads, s_j, n_heads, 1, 0, n_heads);
        }
    }
    return SAR_OK;
}
#endif
