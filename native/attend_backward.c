/* The gradients of attention (GAT, SAR alg. 2 and sec. 3.3). The coefficients are computed again, from m and 1 / l of
 * each destination. */
#ifndef T
#include "philox.h"
#define KERNEL "attend_backward.c"
#define ALSO_BFLOAT16
#include "each_index.h"
#else
#include "attend.inc.h"

/* A step: at most CHUNK consecutive edges, which are several whole rows or a part of one row. A piece is the edges of
 * one row in the step. A row of more than GROUP edges shares no step with other rows. */
typedef struct {
    int n, n_pieces;
    int end[CHUNK];         /* of each piece */
    int64_t row[CHUNK];     /* its source */
    int64_t of[CHUNK];      /* the source of each edge */
    char begins[CHUNK];     /* whether it is the row's first, or its group's */
    int grouped;            /* one piece, of a row that is summed in groups */
    int first, ends;        /* of its group: whether it is the row's first, and the piece its last */
} NAME(pieces);

/* Take the next step of at most `step` edges, from edge *e of row *j < end on, and advance *j and *e. Rows of more than
 * `most` edges are taken in groups of GROUP edges. */
SAR_INLINE void NAME(next_pieces)(NAME(pieces) *p, const int64_t *restrict indptr, int step, int64_t most, int64_t *j, int64_t *e,
                                  int64_t end)
{
    p->n = p->n_pieces = p->grouped = 0;
    while (*j < end && p->n_pieces < CHUNK) {
        int64_t at = *e - indptr[*j], left = indptr[*j + 1] - *e;
        if (indptr[*j + 1] - indptr[*j] > most) {
            if (p->n_pieces) break;
            int64_t of_group = GROUP - at % GROUP, n = of_group < left ? of_group : left;
            p->grouped = 1, p->first = at < GROUP, p->ends = n <= step;
            at %= GROUP, left = n;
        }
        int n = left < step ? (int)left : step;
        if (p->n + n > step) break;
        p->row[p->n_pieces] = *j, p->begins[p->n_pieces] = at == 0;
        for (int k = p->n; k < p->n + n; k++) p->of[k] = *j;
        p->n += n;
        p->end[p->n_pieces++] = p->n;
        *e += n;
        if (*e < indptr[*j + 1]) break;
        ++*j;
        if (p->grouped) break;
    }
}

/* row += group; with `begins`, row = group. */
static __attribute__((noinline)) void NAME(add_group)(T *restrict row, const T *restrict group, int64_t n, int begins)
{
    for (int64_t f = 0; f < n; f++) row[f] = (begins ? 0 : row[f]) + group[f];
}

/* Compute part `part` of n_parts of the source rows of sar_attend_backward. `sums` belongs to this thread alone. */
static void NAME(attend_backward_rows)(T *restrict dz, T *restrict dsrc, double *restrict sums, const T *restrict ends,
                                       const S *restrict g, const NAME(sar_attention) *a, int accumulate, int near, int64_t part,
                                       int64_t n_parts)
{
    const int64_t *restrict indptr = a->csr.indptr, n_rows = a->csr.n_rows;
    const int64_t n_heads = a->n_heads, n_feat = a->n_feat, stride = n_heads * n_feat, z_stride = a->z_heads * n_feat;
    const int64_t begin = sar_split_rows(indptr, n_rows, part, n_parts), end = sar_split_rows(indptr, n_rows, part + 1, n_parts);
    const T slope = (T)a->slope, keep = (T)(1 / (1 - a->dropout.p)), *restrict src = a->src;
    const int step = NAME(step_edges)(n_heads, n_feat);
    const int64_t *restrict src_ids = a->dropout.src_ids;
    const uint32_t threshold = philox_threshold(a->dropout.p);
    T alpha[CHUNK], coef[CHUNK], dot[CHUNK], slope_at[CHUNK], m_at[CHUNK], scale_at[CHUNK], delta_at[CHUNK];
    uint64_t edge_id[CHUNK];
    uint32_t word[4][CHUNK];
    T group_dz[GROUP_VALUES], group_dsrc[GROUP_HEADS];
    const int64_t most = HAS_GROUPS(n_heads, n_feat) ? GROUP : INT64_MAX;
    NAME(pieces) p;

    for (int64_t j = begin, e = indptr[begin]; j < end;) {
        const I *restrict col = a->csr.indices + e;
        const int64_t n_ahead = indptr[n_rows] - e;
        NAME(next_pieces)(&p, indptr, step, most, &j, &e, end);
        const int n = p.n, overwrite = p.grouped || !accumulate;
        NAME(prefetch_scores)(ends, n_heads * 4 * (int64_t)sizeof(T), col + n, n, n_ahead - n);
        NAME(prefetch_scores)(sums, n_heads * (int64_t)sizeof(double), col + n, n, n_ahead - n);
        if (src_ids)
            for (int k = 0; k < n; k++) edge_id[k] = (uint64_t)src_ids[p.of[k]] * a->dropout.n_nodes + (uint64_t)a->dropout.dst_ids[col[k]];

        for (int64_t h = 0; h < n_heads; h++) {
            for (int k = 0; k < n; k++) {
                const T *restrict at = ends + ((int64_t)col[k] * n_heads + h) * 4;
                alpha[k] = src[p.of[k] * n_heads + h] + at[0], m_at[k] = at[1], scale_at[k] = at[2], delta_at[k] = at[3];
            }
            for (int k = 0; k < n; k++) {
                slope_at[k] = alpha[k] > 0 ? 1 : slope;
                alpha[k] = slope_at[k] * alpha[k] - m_at[k];
            }
            NAME(exp_all)(alpha, n);
            for (int k = 0; k < n; k++) alpha[k] *= scale_at[k];

            /* coef = alpha k for dz; de = alpha (k t - delta) slope = (coef t - alpha delta) slope. */
            if (src_ids && h % 4 == 0) NAME(edge_words)(word, edge_id, n, (uint32_t)(h / 4), a->dropout.key);
            for (int k = 0; k < n; k++) coef[k] = !src_ids ? alpha[k] : word[h % 4][k] < threshold ? 0 : alpha[k] * keep;
            for (int i = 0, k = 0; i < p.n_pieces; k = p.end[i++]) {
                const NAME(gather) edges = {.x = g + h * n_feat, .index = col + k, .coef = coef + k, .stride = stride,
                                            .n = p.end[i] - k, .n_ahead = n_ahead - k, .near = near,
                                            .prefetch = NAME(head_prefetch)(h, n_heads, stride)};
                const int64_t column = a->z_heads == 1 ? 0 : h * n_feat, at = p.row[i] * z_stride;
                const int64_t later = (p.row[i] + p.n_pieces) * z_stride;
                if (h == 0 && p.row[i] + p.n_pieces < end)
                    for (int64_t f = 0; f < z_stride; f += 64 / (int64_t)sizeof(T)) {
                        SAR_PREFETCH(a->z + later + f);
                        SAR_PREFETCH_OUT(dz + later + f);
                    }
                NAME(gather_dot)(1, dot + k, (p.grouped ? group_dz : dz + at) + column, a->z + at + column, &edges, n_feat,
                                 overwrite && p.begins[i] && (h == 0 || a->z_heads > 1));
            }
            for (int k = 0; k < n; k++) dot[k] = (coef[k] * dot[k] - alpha[k] * delta_at[k]) * slope_at[k];
            for (int k = 0; k < n; k++) sums[(int64_t)col[k] * n_heads + h] += (double)dot[k];
            for (int i = 0, k = 0; i < p.n_pieces; i++) {
                T *at = (p.grouped ? group_dsrc : dsrc + p.row[i] * n_heads) + h;
                double sum = 0;
                for (; k < p.end[i]; k++) sum += (double)dot[k];
                *at = (overwrite && p.begins[i] ? 0 : *at) + (T)sum;
            }
        }
        if (p.grouped && p.ends) {
            NAME(add_group)(dz + p.row[0] * z_stride, group_dz, z_stride, p.first && !accumulate);
            NAME(add_group)(dsrc + p.row[0] * n_heads, group_dsrc, n_heads, p.first && !accumulate);
        }
    }
}

/* Gradients of attention over edges given by source: row j is a source, and a's indices are its destinations i:
 *   alpha = exp(s - m[i,h]) / l[i,h];  t = g[i,h,:] . z[j,h,:];  k = mask/(1-p)
 *   dz[j,h,:] += alpha k g[i,h,:];  de = alpha (k t - delta[i,h]) leaky_relu'(s_pre);  dsrc[j,h] += de;
 *   sums[thread,i,h] += de
 * If all heads share z, they also share dz.
 *
 * inputs   ends (n_dst, n_heads, 4): dst, m, 1 / l, delta = sum_d g * out; g (n_dst, n_heads, n_feat)
 *          side by side, so that an edge reads one cache line for them; m and 1 / l apart, as m + log l loses l's
 *          digits beside a large m
 * output   dz (n_src, z_heads, n_feat), dsrc (n_src, n_heads): accumulated, or overwritten;
 *          sums (n_threads, n_dst, n_heads): accumulated, each thread's part of ddst, which sar_attend_backward_finish
 *          adds. float64, as these sums cancel.
 * cost     O(n_edges * n_heads * n_feat)
 */
int NAME(sar_attend_backward)(T *restrict dz, T *restrict dsrc, double *restrict sums, const T *restrict ends, const S *restrict g,
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
