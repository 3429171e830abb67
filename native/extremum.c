/* Running maximum or minimum over the in-edges of each row, with its argument; and its gradient. */
#ifndef T
#include "sarlite.h"
#define KERNEL "extremum.c"
#include "each_index.h"
#else
#ifndef COLUMNS
#define COLUMNS 128
#define EDGES_AHEAD 8
#ifndef SAR_REGISTER
#define SAR_REGISTER 16     /* bytes of a register; build.py says it for each instruction set */
#endif
#define WIDE ((int)(SAR_REGISTER / sizeof(T)))      /* values of a register */
#endif

/* Prefetch n > 0 values of a row: the cache line of each LANES of them, and the last one's, where a row starts inside a line. */
SAR_INLINE void NAME(prefetch_columns)(const T *row, int n)
{
    for (int f = 0; f < n; f += LANES) SAR_PREFETCH(row + f);
    SAR_PREFETCH(row + n - 1);
}

/* Compare one candidate row with the best values so far. The candidate wins if there is no best value yet, if it is
 * better, if it is NaN and the best value is not (so that an error stays visible), and at a tie if its priority is
 * lower; two NaN tie. rank is NULL where labels are the priorities. `sign` is a constant where this is inlined. */
SAR_INLINE void NAME(take_better)(const int sign, T *restrict best, I *restrict arg, I *restrict rank, const T *restrict row,
                                  int n, I label, I label_rank)
{
    for (int f = 0; f < n; f++) {
        T new = row[f], old = best[f];
        int better = (sign > 0 ? new > old : new < old) | ((new != new) & (old == old));
        int tie = (new == old) | ((new != new) & (old != old));
        int take = (arg[f] < 0) | better | (tie & (label_rank < (rank ? rank : arg)[f]));
        best[f] = take ? new : old;
        arg[f] = take ? label : arg[f];
        if (rank) rank[f] = take ? label_rank : rank[f];
    }
}

/* Compute the rows begin .. end of sar_extremum_forward, in blocks of COLUMNS columns whose ranks lie on the stack. `sign` and
 * `ordered` (labels->order is not NULL) are constants where this is inlined. */
SAR_INLINE int NAME(extremum_rows)(const int sign, const int ordered, T *restrict out, I *restrict arg, const NAME(sar_csr) *csr,
                                   const NAME(sar_labels) *labels, const T *restrict x, int64_t n_feat, int64_t begin, int64_t end)
{
    const int64_t *restrict indptr = csr->indptr;
    const I *restrict indices = csr->indices, *restrict rows = csr->rows, *restrict label = labels->label;
    const I *restrict order = labels->order;
    const int64_t n_edges = indptr[csr->n_rows], n_order = labels->n_order;
    I rank[COLUMNS];
    int status = SAR_OK;
    for (int64_t i = begin; i < end; i++)
    for (int64_t first = 0; first < n_feat; first += COLUMNS) {
        int n = n_feat - first < COLUMNS ? (int)(n_feat - first) : COLUMNS;
        int64_t to = rows ? (int64_t)rows[i] : i;
        T *restrict best = out + to * n_feat + first;
        I *restrict arg_i = arg + to * n_feat + first;
        for (int f = 0; ordered && f < n; f++) {
            if (arg_i[f] >= n_order) return SAR_LABEL_OUT_OF_BOUNDS;
            rank[f] = arg_i[f] >= 0 ? order[arg_i[f]] : -1;
        }
        for (int64_t e = indptr[i]; e < indptr[i + 1]; e++) {
            int64_t r = indices ? (int64_t)indices[e] : e;
            if (indices && e + EDGES_AHEAD < n_edges)
                NAME(prefetch_columns)(x + indices[e + EDGES_AHEAD] * n_feat + first, n);
            int64_t candidate = label ? (int64_t)label[e] : labels->offset + r;
            if (candidate < 0 || (ordered && candidate >= n_order)) {
                status = SAR_LABEL_OUT_OF_BOUNDS;
                continue;
            }
            NAME(take_better)(sign, best, arg_i, ordered ? rank : NULL, x + r * n_feat + first, n, (I)candidate,
                              ordered ? order[candidate] : (I)candidate);
        }
    }
    return status;
}

#if FLOAT_BITS == INDEX_BITS
#define REGISTERS 4     /* of values, and as many of labels and of priorities, that one pass over the edges holds */

typedef T NAME(values) __attribute__((vector_size(SAR_REGISTER), aligned(sizeof(T)), may_alias));
typedef I NAME(integers) __attribute__((vector_size(SAR_REGISTER), aligned(sizeof(I)), may_alias));

/* The edges of row i for `width` columns, which n_reg registers cover; the last one ends with them and may overlap the one
 * before, as a candidate that is compared twice changes nothing. The arguments and the result are those of extremum_rows; out,
 * arg and x point to the first column. n_reg, sign and ordered are constants where this is inlined. */
SAR_INLINE int NAME(extremum_pass)(const int n_reg, const int sign, const int ordered, T *restrict out, I *restrict arg,
                                   const NAME(sar_csr) *csr, const NAME(sar_labels) *labels, const T *restrict x,
                                   int64_t n_feat, int width, int64_t i)
{
    const int64_t *restrict indptr = csr->indptr;
    const I *restrict indices = csr->indices, *restrict label = labels->label, *restrict order = labels->order;
    const int64_t n_edges = indptr[csr->n_rows];
    NAME(values) best[REGISTERS];
    NAME(integers) best_arg[REGISTERS], rank[REGISTERS];
    int at[REGISTERS], status = SAR_OK;
#pragma GCC unroll 4
    for (int v = 0; v < n_reg; v++) {
        at[v] = v + 1 < n_reg ? v * WIDE : width - WIDE;
        best[v] = *(const NAME(values) *)(out + at[v]);
        best_arg[v] = *(const NAME(integers) *)(arg + at[v]);
        for (int k = 0; ordered && k < WIDE; k++) {
            if (best_arg[v][k] >= labels->n_order) return SAR_LABEL_OUT_OF_BOUNDS;
            rank[v][k] = best_arg[v][k] >= 0 ? order[best_arg[v][k]] : -1;
        }
    }
    for (int64_t e = indptr[i]; e < indptr[i + 1]; e++) {
        int64_t r = indices ? (int64_t)indices[e] : e;
        int64_t candidate = label ? (int64_t)label[e] : labels->offset + r;
        if (indices && e + EDGES_AHEAD < n_edges)
            NAME(prefetch_columns)(x + indices[e + EDGES_AHEAD] * n_feat, width);
        if (candidate < 0 || (ordered && candidate >= labels->n_order)) {
            status = SAR_LABEL_OUT_OF_BOUNDS;
            continue;
        }
        const I label_rank = ordered ? order[candidate] : (I)candidate;
#pragma GCC unroll 4
        for (int v = 0; v < n_reg; v++) {
            const NAME(values) new = *(const NAME(values) *)(x + r * n_feat + at[v]), old = best[v];
            const NAME(integers) old_is_number = old == old, worse = sign > 0 ? new <= old : new >= old;
            const NAME(integers) tie = (new == old) | (~old_is_number & (new != new));
            const NAME(integers) lower = label_rank < (ordered ? rank[v] : best_arg[v]);
            const NAME(integers) take = (best_arg[v] < 0) | (~worse & old_is_number) | (tie & lower);
            best[v] = (NAME(values))(((NAME(integers))new & take) | ((NAME(integers))old & ~take));
            best_arg[v] = ((I)candidate & take) | (best_arg[v] & ~take);
            if (ordered) rank[v] = (label_rank & take) | (rank[v] & ~take);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < n_reg; v++) {
        *(NAME(values) *)(out + at[v]) = best[v];
        *(NAME(integers) *)(arg + at[v]) = best_arg[v];
    }
    return status;
}

/* The rows begin .. end as extremum_rows computes them, for n_feat >= WIDE. */
SAR_INLINE int NAME(extremum_wide)(const int sign, const int ordered, T *restrict out, I *restrict arg, const NAME(sar_csr) *csr,
                                   const NAME(sar_labels) *labels, const T *restrict x, int64_t n_feat, int64_t begin, int64_t end)
{
#define PASS(n_reg) status |= NAME(extremum_pass)(n_reg, sign, ordered, out + to * n_feat + f, arg + to * n_feat + f, csr, labels, x + f, \
                                                  n_feat, width, i)
    int status = SAR_OK;
    for (int64_t i = begin; i < end; i++)
        for (int64_t first = 0; first < n_feat; first += REGISTERS * WIDE) {
            const int64_t to = csr->rows ? (int64_t)csr->rows[i] : i, f = first < n_feat - WIDE ? first : n_feat - WIDE;
            const int width = n_feat - f < REGISTERS * WIDE ? (int)(n_feat - f) : REGISTERS * WIDE;
            switch ((width + WIDE - 1) / WIDE) {
            case 1: PASS(1); break;
            case 2: PASS(2); break;
            case 3: PASS(3); break;
            default: PASS(4);
            }
        }
    return status;
#undef PASS
}
#endif

/* Part of the rows with sign and order as constants. */
static int NAME(extremum_part)(T *restrict out, I *restrict arg, const NAME(sar_csr) *csr, const NAME(sar_labels) *labels,
                               const T *restrict x, int sign, int64_t n_feat, int64_t begin, int64_t end)
{
#define ROWS(rows) \
    if (labels->order && sign > 0) return NAME(rows)(1, 1, out, arg, csr, labels, x, n_feat, begin, end); \
    if (labels->order) return NAME(rows)(-1, 1, out, arg, csr, labels, x, n_feat, begin, end); \
    if (sign > 0) return NAME(rows)(1, 0, out, arg, csr, labels, x, n_feat, begin, end); \
    return NAME(rows)(-1, 0, out, arg, csr, labels, x, n_feat, begin, end)
#if FLOAT_BITS == INDEX_BITS
    if (n_feat >= WIDE) { ROWS(extremum_wide); }
#endif
    ROWS(extremum_rows);
#undef ROWS
}

/* (out, arg)[t,f] = better of (out, arg)[t,f] and (x[r,f], label) over the edges e of row i; t = rows[i], or i if
 * rows is NULL; r = indices[e], or e if indices is NULL; label = label[e], or offset + r if label is NULL. Ties go
 * to the lower order[label] (order NULL: the lower label), so the result does not depend on how the edges are split
 * into blocks or ordered.
 *
 * inputs   csr, labels: see prototypes_rows.h and prototypes_index.h; x (n_src, n_feat); sign +1 maximum, -1 minimum
 * output   out, arg (n_out, n_feat): updated; arg = -1 means none yet
 * status   SAR_LABEL_OUT_OF_BOUNDS: a label is negative or, where order is given, not below n_order
 * cost     O(n_edges * n_feat)
 */
int NAME(sar_extremum_forward)(T *restrict out, I *restrict arg, const NAME(sar_csr) *csr, const NAME(sar_labels) *labels,
                               const T *restrict x, int sign, int64_t n_feat)
{
    const int64_t *restrict indptr = csr->indptr, n_dst = csr->n_rows;
    int team = sar_team((indptr[n_dst] - indptr[0]) * n_feat);
    int status = SAR_OK;
#pragma omp parallel num_threads(team) reduction(| : status)
    {
        int64_t begin = sar_split_rows(indptr, n_dst, sar_team_rank(), sar_team_size());
        int64_t end = sar_split_rows(indptr, n_dst, sar_team_rank() + 1, sar_team_size());
        status |= NAME(extremum_part)(out, arg, csr, labels, x, sign, n_feat, begin, end);
    }
    return status;
}

/* dx[r,f] += g[i,f],   r = arg[i,f] - offset, if 0 <= r < n_src; labels of other blocks are skipped. A float32 sum over
 * very many i would lose digits, so rows with a place are summed in float64: sums[place[r],f] += g[i,f].
 *
 * inputs   g, arg (n_dst, n_feat); place (n_src): a row of sums, or -1: none; NULL: none for all
 * output   dx (n_src, n_feat), sums (., n_feat), accumulated
 * cost     O(n_dst * n_feat); parallel over ranges of columns, so that no two threads meet
 */
int NAME(sar_extremum_backward)(T *restrict dx, double *restrict sums, const T *restrict g, const I *restrict arg,
                                const I *restrict place, int64_t offset, int64_t n_dst, int64_t n_src, int64_t n_feat)
{
    int64_t n_blocks = (n_feat + LANES - 1) / LANES;
    int team = sar_team(n_dst * n_feat);
#pragma omp parallel num_threads(team)
    {
        int64_t begin = sar_split(n_blocks, sar_team_rank(), sar_team_size()) * LANES;
        int64_t end = sar_split(n_blocks, sar_team_rank() + 1, sar_team_size()) * LANES;
        if (end > n_feat) end = n_feat;
        for (int64_t i = 0; i < n_dst; i++)
            for (int64_t f = begin; f < end; f++) {
                int64_t r = (int64_t)arg[i * n_feat + f] - offset;
                if (arg[i * n_feat + f] < 0 || r < 0 || r >= n_src) continue;
                if (place && place[r] >= 0) sums[place[r] * n_feat + f] += (double)g[i * n_feat + f];
                else dx[r * n_feat + f] += g[i * n_feat + f];
            }
    }
    return SAR_OK;
}
#endif
