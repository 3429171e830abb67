/* Gathering rows, such as rows to send to a peer, and adding rows, such as gradients that a peer sends. */
#ifndef T
#include "sarlite.h"
#define KERNEL "rows.c"
#include "each_index.h"
#else

/* out[k,:] = x[index[k],:]
 *
 * inputs   x (n_rows, n_feat), index (n_index)
 * output   out (n_index, n_feat), overwritten
 * status   SAR_INDEX_OUT_OF_BOUNDS: an index is not in 0 .. n_rows; nothing outside x is read
 * cost     O(n_index * n_feat)
 */
int NAME(sar_gather_rows_forward)(T *restrict out, const T *restrict x, const I *restrict index, int64_t n_rows,
                                  int64_t n_index, int64_t n_feat)
{
    int team = sar_team(n_index * n_feat), status = SAR_OK;
#pragma omp parallel for num_threads(team) schedule(static) reduction(| : status)
    for (int64_t k = 0; k < n_index; k++) {
        if (index[k] < 0 || index[k] >= n_rows) {
            status |= SAR_INDEX_OUT_OF_BOUNDS;
            continue;
        }
        memcpy(out + k * n_feat, x + index[k] * n_feat, (size_t)n_feat * sizeof(T));
    }
    return status;
}

/* out[index[k],:] += rows[k,:]
 *
 * inputs   rows (n_index, n_feat), index (n_index): values unique, since rows are added in parallel
 * output   out (n_rows, n_feat), accumulated
 * status   SAR_INDEX_OUT_OF_BOUNDS: an index is not in 0 .. n_rows; nothing outside out is written
 * cost     O(n_index * n_feat)
 */
int NAME(sar_gather_rows_backward)(T *restrict out, const T *restrict rows, const I *restrict index, int64_t n_rows,
                                   int64_t n_index, int64_t n_feat)
{
    int team = sar_team(n_index * n_feat), status = SAR_OK;
#pragma omp parallel for num_threads(team) schedule(static) reduction(| : status)
    for (int64_t k = 0; k < n_index; k++) {
        if (index[k] < 0 || index[k] >= n_rows) {
            status |= SAR_INDEX_OUT_OF_BOUNDS;
            continue;
        }
        T *restrict to = out + index[k] * n_feat;
        const T *restrict from = rows + k * n_feat;
        for (int64_t f = 0; f < n_feat; f++) to[f] += from[f];
    }
    return status;
}
#endif
