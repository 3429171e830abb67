/* The transpose of a CSR by a stable counting sort. The same code serves every instruction set. */
#ifndef I
#include "sarlite.h"

#define TRANSPOSE_AT_ONCE 1024      /* edges that a thread picks out before it counts or places them */
#define TRANSPOSE_ALONE (1 << 22)   /* fewer edges one thread sorts as fast */
#define TRANSPOSE_AHEAD 24          /* edges whose places are prefetched */

#define NAME(op) SAR_PASTE(op, _i32, )
#define I int32_t
#include "transpose.c"
#undef I
#undef NAME

#define NAME(op) SAR_PASTE(op, _i64, )
#define I int64_t
#include "transpose.c"
#undef I
#undef NAME
#else

/* Edges that a thread picked out because their columns belong to it. */
typedef struct {
    I column[TRANSPOSE_AT_ONCE], row[TRANSPOSE_AT_ONCE], edge[TRANSPOSE_AT_ONCE];
} NAME(transpose_picked);

/* Count the edges of each column c in ends[c + 1], which start at 0. Indices out of range are not counted. */
static void NAME(transpose_count)(int64_t *restrict ends, const I *restrict indices, int64_t n_edges, int64_t n_src)
{
    for (int64_t e = 0; e < n_edges; e++)
        if ((uint64_t)indices[e] < (uint64_t)n_src) ends[indices[e] + 1]++;
}

/* Count as transpose_count does, for the CSR columns first .. last only. A branch on whether an edge belongs to them would be
 * mispredicted, so there is none. */
static void NAME(transpose_count_own)(int64_t *restrict ends, const I *restrict indices, int64_t n_edges, int64_t first, int64_t last)
{
    I column[TRANSPOSE_AT_ONCE];
    for (int64_t begin = 0; begin < n_edges; begin += TRANSPOSE_AT_ONCE) {
        int64_t end = begin + TRANSPOSE_AT_ONCE < n_edges ? begin + TRANSPOSE_AT_ONCE : n_edges, n = 0;
        for (int64_t e = begin; e < end; e++) {
            column[n] = indices[e];
            n += (uint64_t)(indices[e] - first) < (uint64_t)(last - first);
        }
        for (int64_t k = 0; k < n; k++) ends[column[k] + 1]++;
    }
}

/* Put all edges into the transpose; next[c] is the next free position of column c, and is advanced. */
static void NAME(transpose_place)(int64_t *restrict next, I *restrict t_indices, I *restrict position, const int64_t *restrict indptr,
                                  const I *restrict indices, const I *restrict rows, int64_t n_dst)
{
    const int64_t n_edges = indptr[n_dst];
    for (int64_t i = 0; i < n_dst; i++)
        for (int64_t e = indptr[i]; e < indptr[i + 1]; e++) {
            if (e + TRANSPOSE_AHEAD < n_edges) SAR_PREFETCH_OUT(t_indices + next[indices[e + TRANSPOSE_AHEAD]]);
            int64_t to = next[indices[e]]++;
            t_indices[to] = rows ? rows[i] : (I)i;
            if (position) position[to] = (I)e;
        }
}

/* Put n edges, which were picked out, into the transpose; see transpose_place. */
SAR_INLINE void NAME(transpose_place_picked)(int64_t *restrict next, I *restrict t_indices, I *restrict position,
                                             const NAME(transpose_picked) *restrict own, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        if (k + TRANSPOSE_AHEAD < n) SAR_PREFETCH_OUT(t_indices + next[own->column[k + TRANSPOSE_AHEAD]]);
        int64_t to = next[own->column[k]]++;
        t_indices[to] = own->row[k];
        if (position) position[to] = own->edge[k];
    }
}

/* Put the edges of the CSR columns first .. last into the transpose; see transpose_place. */
static void NAME(transpose_place_own)(int64_t *restrict next, I *restrict t_indices, I *restrict position, const int64_t *restrict indptr,
                                      const I *restrict indices, const I *restrict rows, int64_t n_dst, int64_t first, int64_t last)
{
    NAME(transpose_picked) own;
    int64_t n = 0;
    for (int64_t i = 0; i < n_dst; i++) {
        I row = rows ? rows[i] : (I)i;
        for (int64_t e = indptr[i]; e < indptr[i + 1]; e++) {
            own.column[n] = indices[e];
            own.row[n] = row;
            own.edge[n] = (I)e;
            n += (uint64_t)(indices[e] - first) < (uint64_t)(last - first);
            if (n == TRANSPOSE_AT_ONCE) {
                NAME(transpose_place_picked)(next, t_indices, position, &own, n);
                n = 0;
            }
        }
    }
    NAME(transpose_place_picked)(next, t_indices, position, &own, n);
}

/* Edge e of row i with column indices[e] becomes an edge of row indices[e] with column rows[i]. The edges of a row stay in
 * their order.
 *
 * inputs   indptr (n_dst + 1) from 0, indices (n_edges), rows (n_dst) or NULL: rows[i] = i
 * output   t_indptr (n_src + 1), t_indices (n_edges), position (n_edges) or NULL: e of each edge; overwritten
 * status   SAR_INDEX_OUT_OF_BOUNDS: an index is outside 0 .. n_src; t_indices and position are as they were
 * cost     O(n_edges + n_src + n_dst) moved, and two passes over the edges by each thread, which owns a range of
 *          columns: so threads need no counts of their own, never write to one cache line, and the result is the
 *          same for any number of them. The passes and the other core's lines cost two threads what they save
 *          (304,000 edges to 91,000 columns: 0.87 and 0.95 ms), so few threads, or few edges, are one thread's
 */
int NAME(sar_transpose)(int64_t *restrict t_indptr, I *restrict t_indices, I *restrict position, const int64_t *restrict indptr,
                        const I *restrict indices, const I *restrict rows, int64_t n_dst, int64_t n_src)
{
    int64_t n_edges = indptr[n_dst];
    int team = sar_team(n_edges), status = SAR_OK;
    if (team < 4 || n_edges < TRANSPOSE_ALONE) team = 1;
#pragma omp parallel num_threads(team)
    {
        int64_t size = sar_team_size(), first = sar_split(n_src, sar_team_rank(), size), last = sar_split(n_src, sar_team_rank() + 1, size);
        memset(t_indptr + first + 1, 0, (size_t)(last - first) * sizeof(int64_t));
        if (size == 1) NAME(transpose_count)(t_indptr, indices, n_edges, n_src);
        else NAME(transpose_count_own)(t_indptr, indices, n_edges, first, last);
#pragma omp barrier
#pragma omp single
        {
            t_indptr[0] = 0;
            for (int64_t c = 0; c < n_src; c++) t_indptr[c + 1] += t_indptr[c];
            if (t_indptr[n_src] != n_edges) status = SAR_INDEX_OUT_OF_BOUNDS;
        }
        first = sar_split_rows(t_indptr, n_src, sar_team_rank(), size);
        last = sar_split_rows(t_indptr, n_src, sar_team_rank() + 1, size);
#pragma omp barrier
        if (status == SAR_OK && size == 1) NAME(transpose_place)(t_indptr, t_indices, position, indptr, indices, rows, n_dst);
        else if (status == SAR_OK)
            NAME(transpose_place_own)(t_indptr, t_indices, position, indptr, indices, rows, n_dst, first, last);
    }
    /* Each offset has moved to the end of its row, where the next one starts. */
    if (status == SAR_OK) memmove(t_indptr + 1, t_indptr, (size_t)n_src * sizeof(int64_t));
    t_indptr[0] = 0;
    return status;
}
#endif
