/* Products of a sparse and a dense matrix, with a weight for each edge (and head), and the gradient of the weights.
 * The gradient of x is the same kernel on the transposed CSR, with the two scales exchanged. */
#ifndef T
#include "sarlite.h"
/* Where a tile of rows reads each row of x REUSE times or more, it takes the rows of x range by range, as a range stays in
 * the second-level cache. Measured at 64 to 512 columns in tiles of 1,024 rows: 20 reads took 0.43 to 0.67 of the time of
 * one range, 10 reads 0.62 to 0.77, 5 reads 0.92 to 1.2; REUSE asks for 8 reads there. Most processors have RANGE_BYTES of
 * that cache; where it has 2 MiB, so large ranges take up to 0.08 less. Tiles of 4,096 rows read a range from the
 * last-level cache a quarter as often. Rows of NARROW_BYTES or fewer take one range: on R, the last-level cache gave rows
 * of 64 and 128 bytes in 0.91 and 0.84 of the time of ranges, and rows of 192 bytes in the same time. */
#define TILE_ROWS 4096
#define RANGE_BYTES (1 << 20)
#define REUSE 32
#define NARROW_BYTES 128
#define JUMP 16     /* edges that the search for a range's end passes at once */
#define KERNEL "spmm.c"
#define ALSO_BFLOAT16
#include "each_index.h"
#else
#include "gather.inc.h"

/* The columns of the edges e .. e + n: a part of `indices`, or if that is NULL the numbers e .. e + n, written to `own`. */
SAR_INLINE const I *NAME(columns)(I *restrict own, const I *restrict indices, int64_t e, int n)
{
    if (indices) return indices + e;
    for (int k = 0; k < n; k++) own[k] = (I)(e + k);
    return own;
}

/* The coefficients coef[k] of head h for the edges e .. e + n, whose columns are col: weight times src_scale, of which at
 * least one is not NULL. */
SAR_INLINE void NAME(coefficients)(T *restrict coef, const NAME(sar_sum) *a, const I *restrict col, int64_t e, int n, int64_t h)
{
    const T *restrict weight = a->weight, *restrict src_scale = a->src_scale;
    const I *restrict eid = a->csr.eid;
    if (weight && eid) for (int k = 0; k < n; k++) coef[k] = weight[(int64_t)eid[e + k] * a->n_heads + h];
    else if (weight) for (int k = 0; k < n; k++) coef[k] = weight[(e + k) * a->n_heads + h];
    if (src_scale && weight) for (int k = 0; k < n; k++) coef[k] *= src_scale[col[k]];
    else if (src_scale) for (int k = 0; k < n; k++) coef[k] = src_scale[col[k]];
}

/* row[:] = (with `begins`) or += scale * the sum over the edges first .. last; prefetch as in gather.inc.h. `weighted`, a
 * constant where this is inlined: the sum has weight or src_scale. */
SAR_INLINE void NAME(sum_edges)(const int weighted, T *restrict row, const NAME(sar_sum) *a, int64_t first, int64_t last, T scale,
                                int64_t prefetch, int begins)
{
    const int64_t n_edges = a->csr.indptr[a->csr.n_rows], n_feat = a->n_feat, stride = a->n_heads * n_feat;
    const I *restrict indices = a->csr.indices;
    I own[CHUNK];
    T coef[CHUNK];

    for (int64_t e = first; e < last; e += CHUNK, begins = 0) {
        int n = last - e < CHUNK ? (int)(last - e) : CHUNK;
        const I *col = NAME(columns)(own, indices, e, n);
        for (int64_t h = 0; h < a->n_heads; h++) {
            if (weighted) NAME(coefficients)(coef, a, col, e, n, h);
            const NAME(gather) edges = {.x = a->x + h * n_feat, .index = col, .coef = weighted ? coef : NULL, .stride = stride,
                                        .n = n, .n_ahead = indices ? n_edges - e : n, .prefetch = prefetch};
            NAME(gather_sum)(row + h * n_feat, &edges, n_feat, scale, begins);
        }
    }
    if (begins) for (int64_t f = 0; f < stride; f++) row[f] = 0;    /* overwritten, and no edges */
}

/* The number of ranges that the rows of x are divided into. It depends only on sizes, so the order of additions and the
 * bits of the result do too. bfloat16 rows are not divided: more of them fit the cache, and ranges took 1.05 to 1.2 of
 * the time. */
static int64_t NAME(count_ranges)(const NAME(sar_sum) *a)
{
    const int64_t n_rows = a->csr.n_rows, tile = n_rows < TILE_ROWS ? n_rows : TILE_ROWS;
    const int64_t n_edges = a->csr.indptr[n_rows] - a->csr.indptr[0], row_bytes = a->n_heads * a->n_feat * (int64_t)sizeof(T);
    if (sizeof(S) < sizeof(T) || row_bytes <= NARROW_BYTES || !a->csr.indices) return 1;
    if (n_rows == 0 || n_edges / n_rows * tile < REUSE * a->n_src) return 1;
    return a->n_src * row_bytes / RANGE_BYTES + 1;
}

/* The first of the edges e .. last whose column is at least `limit`, where columns ascend. Where they do not, an edge may
 * be summed in another range than its column's. */
SAR_INLINE int64_t NAME(range_end)(const I *restrict indices, int64_t e, int64_t last, int64_t limit)
{
    while (last - e >= JUMP && indices[e + JUMP - 1] < limit) e += JUMP;
    if (last - e >= JUMP) {
        for (int step = JUMP / 2; step; step /= 2) e += indices[e + step - 1] < limit ? step : 0;
        return e;
    }
    while (e < last && indices[e] < limit) e++;
    return e;
}

/* Part `part` of n_parts of the rows of sar_spmm_forward; `weighted` as in sum_edges. */
SAR_INLINE void NAME(spmm_rows)(const int weighted, T *restrict out, const NAME(sar_sum) *a, int accumulate, int64_t n_ranges,
                                int64_t part, int64_t n_parts)
{
    const int64_t *restrict indptr = a->csr.indptr, n_rows = a->csr.n_rows, stride = a->n_heads * a->n_feat;
    const int64_t begin = sar_split_rows(indptr, n_rows, part, n_parts), end = sar_split_rows(indptr, n_rows, part + 1, n_parts);
    const int64_t prefetch = n_ranges == 1 ? -1 : 0;    /* a range is in the cache */
    const NAME(sar_sum) own = *a;       /* whose fields no row that is written can be */
    T group[GROUP_VALUES];
    int64_t at[TILE_ROWS];              /* of each row of a tile: its first edge that is not summed yet */

    for (int64_t tile = begin; tile < end; tile += TILE_ROWS) {
        const int64_t tile_end = end - tile < TILE_ROWS ? end : tile + TILE_ROWS;
        memcpy(at, indptr + tile, (size_t)(tile_end - tile) * sizeof *at);
        for (int64_t range = 0; range < n_ranges; range++) {
            const int64_t limit = sar_split(own.n_src, range + 1, n_ranges);
            for (int64_t i = tile; i < tile_end; i++) {
                int64_t to = own.csr.rows ? (int64_t)own.csr.rows[i] : i, e = at[i - tile], last = indptr[i + 1];
                T scale = own.dst_scale ? own.dst_scale[to] : 1, *restrict row = out + to * stride;
                const int grouped = last - indptr[i] > GROUP && HAS_GROUPS(own.n_heads, own.n_feat);
                int begins = !accumulate && range == 0;
                if (range + 1 < n_ranges) at[i - tile] = last = NAME(range_end)(own.csr.indices, e, last, limit);
                for (int64_t b = 0; n_ranges > 1 && i + 2 < tile_end && b < 256; b += 64)   /* no processor foresees them */
                    SAR_PREFETCH_NEAR((const char *)(own.csr.indices + at[i + 2 - tile]) + b);
                for (int64_t f = 0; n_ranges > 1 && i + 1 < tile_end && f < stride; f += LANES)
                    SAR_PREFETCH_OUT(out + (own.csr.rows ? (int64_t)own.csr.rows[i + 1] : i + 1) * stride + f);
                do {        /* once, or for each group: rounding grows with a sum's length */
                    int64_t next = grouped && last - e > GROUP ? e + GROUP : last;
                    NAME(sum_edges)(weighted, grouped ? group : row, &own, e, next, scale, prefetch, grouped || begins);
                    for (int64_t f = 0; grouped && f < stride; f++) row[f] = begins ? group[f] : row[f] + group[f];
                    e = next, begins = 0;
                } while (e < last);
            }
        }
    }
}

/* Sums with and without weights are functions of their own: one function of both took 1.5 times as long to compile for
 * AVX2, and sums without weights took up to 1.17 times as long. */
static void NAME(plain_rows)(T *restrict out, const NAME(sar_sum) *a, int accumulate, int64_t n_ranges, int64_t part,
                             int64_t n_parts)
{
    NAME(spmm_rows)(0, out, a, accumulate, n_ranges, part, n_parts);
}

static void NAME(weighted_rows)(T *restrict out, const NAME(sar_sum) *a, int accumulate, int64_t n_ranges, int64_t part,
                                int64_t n_parts)
{
    NAME(spmm_rows)(1, out, a, accumulate, n_ranges, part, n_parts);
}

/* out[r,h,:] += dst_scale[r] * sum_{e in row i} weight[eid[e],h] * src_scale[c] * x[c,h,:],   c = indices[e], r =
 * rows[i]
 * (SAR Eq. 1, 2)
 *
 * inputs   sum, as prototypes_rows.h has it
 * output   out (n_out, n_heads, n_feat), accumulated; accumulate = 0: the rows r are overwritten
 * cost     O(n_edges * n_heads * n_feat); a row is summed by one thread, range by range, in chunks of CHUNK edges and
 *          groups of GROUP
 */
int NAME(sar_spmm_forward)(T *restrict out, const NAME(sar_sum) *sum, int accumulate)
{
    const int64_t *restrict indptr = sum->csr.indptr, n_values = sum->n_heads * sum->n_feat;
    int team = sar_team((indptr[sum->csr.n_rows] - indptr[0]) * n_values);
    const int64_t n_ranges = NAME(count_ranges)(sum), n_tiles = sum->csr.n_rows / TILE_ROWS;
    int64_t n_parts = team == 1 ? 1 : n_ranges == 1 ? team * SAR_PARTS : n_tiles > 4 * team ? n_tiles : 4 * team;
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
    for (int64_t part = 0; part < n_parts; part++) {
        if (sum->weight || sum->src_scale) NAME(weighted_rows)(out, sum, accumulate, n_ranges, part, n_parts);
        else NAME(plain_rows)(out, sum, accumulate, n_ranges, part, n_parts);
    }
    return SAR_OK;
}

/* Part `part` of n_parts of the rows of sar_edge_dot_forward. */
static void NAME(edge_dot_rows)(T *restrict out, const S *restrict g, const NAME(sar_sum) *a, int64_t part, int64_t n_parts)
{
    const int64_t *restrict indptr = a->csr.indptr, n_rows = a->csr.n_rows, n_edges = indptr[n_rows];
    const int64_t n_heads = a->n_heads, n_feat = a->n_feat, stride = n_heads * n_feat;
    const int64_t begin = sar_split_rows(indptr, n_rows, part, n_parts), end = sar_split_rows(indptr, n_rows, part + 1, n_parts);
    const I *restrict indices = a->csr.indices, *restrict rows = a->csr.rows, *restrict eid = a->csr.eid;
    const S *restrict x = a->x;
    const T *restrict dst_scale = a->dst_scale;
    I own[CHUNK];
    T dot[CHUNK];

    for (int64_t i = begin; i < end; i++) {
        int64_t from = rows ? (int64_t)rows[i] : i;
        T scale = dst_scale ? dst_scale[from] : 1;
        for (int64_t e = indptr[i]; e < indptr[i + 1]; e += CHUNK) {
            int n = indptr[i + 1] - e < CHUNK ? (int)(indptr[i + 1] - e) : CHUNK;
            const I *col = NAME(columns)(own, indices, e, n);
            for (int64_t h = 0; h < n_heads; h++) {
                const NAME(gather) edges = {.x = x + h * n_feat, .index = col, .stride = stride, .n = n,
                                            .n_ahead = indices ? n_edges - e : n, .prefetch = -1};
                NAME(gather_dot)(0, dot, NULL, g + from * stride + h * n_feat, &edges, n_feat, 0);
                for (int k = 0; k < n; k++) {
                    int64_t to = eid ? (int64_t)eid[e + k] : e + k;
                    out[to * n_heads + h] += scale * dot[k];
                }
            }
        }
    }
}

/* out[eid[e],h] += dst_scale[r] * sum_d g[r,h,d] * x[c,h,d],   c = indices[e], r = rows[i]   (SDDMM; gradient of
 * spmm's weight)
 *
 * inputs   as sar_spmm_forward, but weight and src_scale; g (n_out, n_heads, n_feat); eid's values are unique
 * output   out (., n_heads), accumulated
 * cost     O(n_edges * n_heads * n_feat)
 */
int NAME(sar_edge_dot_forward)(T *restrict out, const S *restrict g, const NAME(sar_sum) *sum)
{
    const int64_t *restrict indptr = sum->csr.indptr;
    int team = sar_team((indptr[sum->csr.n_rows] - indptr[0]) * sum->n_heads * sum->n_feat);
    int64_t n_parts = team == 1 ? 1 : team * SAR_PARTS;
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
    for (int64_t part = 0; part < n_parts; part++) NAME(edge_dot_rows)(out, g, sum, part, n_parts);
    return SAR_OK;
}
#endif
