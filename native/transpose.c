/* The transpose of a CSR by a stable counting sort. One source for every instruction set, each index type once. */
#ifndef I
#include "sarlite.h"

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

/* Count the edges of the columns first .. last in ends[c + 1]. */
static void NAME(count)(int64_t *restrict ends, const I *restrict indices, int64_t n_edges, int64_t first, int64_t last)
{
    for (int64_t c = first; c < last; c++) ends[c + 1] = 0;
    for (int64_t e = 0; e < n_edges; e++)
        if (indices[e] >= first && indices[e] < last) ends[indices[e] + 1]++;
}

/* Put the edges of the columns first .. last in their places; next[c] is the next free one and moves. */
static void NAME(place)(int64_t *restrict next, I *restrict t_indices, I *restrict position, const int64_t *restrict indptr,
                        const I *restrict indices, const I *restrict rows, int64_t n_dst, int64_t first, int64_t last)
{
    for (int64_t i = 0; i < n_dst; i++)
        for (int64_t e = indptr[i]; e < indptr[i + 1]; e++) {
            if (indices[e] < first || indices[e] >= last) continue;
            int64_t to = next[indices[e]]++;
            t_indices[to] = rows ? rows[i] : (I)i;
            if (position) position[to] = (I)e;
        }
}

/* Edge e from row i to column indices[e] becomes an edge of row indices[e] to rows[i]; those of a row keep their order.
 *
 * inputs   indptr (n_dst + 1) from 0, indices (n_edges) within 0 .. n_src, rows (n_dst) or NULL: rows[i] = i
 * output   t_indptr (n_src + 1), t_indices (n_edges), position (n_edges) or NULL: e of each edge; overwritten
 * cost     O(n_edges + n_src + n_dst) moved, and a pass over the edges by each thread, which owns a range of columns: so threads
 *          need no counts of their own, and the result is the same for any number of them. Whether an edge is of a thread's range is
 *          a branch that cannot be foreseen: two threads take as long as one or longer (300,000 edges 2.8 and 0.8 ms), and for
 *          few edges more threads do, so one does it
 */
int NAME(sar_transpose)(int64_t *restrict t_indptr, I *restrict t_indices, I *restrict position, const int64_t *restrict indptr,
                        const I *restrict indices, const I *restrict rows, int64_t n_dst, int64_t n_src)
{
    int64_t n_edges = indptr[n_dst];
    int team = sar_team(n_edges + n_src);
    if (team < 4 || n_edges < 1 << 22) team = 1;
    t_indptr[0] = 0;
#pragma omp parallel num_threads(team)
    {
        int64_t rank = sar_team_rank(), size = sar_team_size();
        NAME(count)(t_indptr, indices, n_edges, sar_split(n_src, rank, size), sar_split(n_src, rank + 1, size));
#pragma omp barrier
#pragma omp single
        for (int64_t c = 0; c < n_src; c++) t_indptr[c + 1] += t_indptr[c];
        int64_t first = sar_split_rows(t_indptr, n_src, rank, size), last = sar_split_rows(t_indptr, n_src, rank + 1, size);
#pragma omp barrier
        NAME(place)(t_indptr, t_indices, position, indptr, indices, rows, n_dst, first, last);
    }
    /* Each offset has moved to the end of its row, where the next one starts. */
    memmove(t_indptr + 1, t_indptr, (size_t)n_src * sizeof(int64_t));
    t_indptr[0] = 0;
    return SAR_OK;
}
#endif
