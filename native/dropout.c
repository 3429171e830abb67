/* Dropout by a counter-based generator: the mask is a function of (key, global row id, column), so its gradient is
 * the same kernel. */
#ifndef T
#include "philox.h"
#define KERNEL "dropout.c"
#include "each_float.h"
#else
#include "mask.inc.h"

/* Compute the rows begin .. end of sar_dropout_forward. */
static void NAME(dropout_rows)(T *restrict out, const T *restrict x, const struct sar_dropout *dropout, int64_t n_feat,
                               int64_t begin, int64_t end)
{
    T factor[MASK_COLUMNS];
    for (int64_t r = begin; r < end; r++)
        for (int64_t first = 0; first < n_feat; first += MASK_COLUMNS) {
            int n = n_feat - first < MASK_COLUMNS ? (int)(n_feat - first) : MASK_COLUMNS;
            const T *restrict from = x + r * n_feat + first;
            T *restrict to = out + r * n_feat + first;
            NAME(dropout_factors)(factor, dropout, r, first, n);
            for (int f = 0; f < n; f++) {                           /* not x * 0, which is NaN where x is infinite */
                T kept = from[f] * factor[f];
                to[f] = factor[f] == 0 ? 0 : kept;
            }
        }
}

/* out[r,c] = x[r,c] * (word < floor(p * 2^32) ? 0 : 1/(1-p)),   word = Philox(ids[r], c / 4; key)[c % 4]
 *
 * inputs   x (n_rows, n_feat); dropout, with ids; its fields are described in prototypes_plain.h
 * output   out (n_rows, n_feat), overwritten
 * cost     O(n_rows * n_feat), a quarter of a Philox block for each element
 */
int NAME(sar_dropout_forward)(T *restrict out, const T *restrict x, const struct sar_dropout *dropout, int64_t n_rows, int64_t n_feat)
{
    int team = sar_team(n_rows * n_feat);
#pragma omp parallel num_threads(team)
    NAME(dropout_rows)(out, x, dropout, n_feat, sar_split(n_rows, sar_team_rank(), sar_team_size()),
                       sar_split(n_rows, sar_team_rank() + 1, sar_team_size()));
    return SAR_OK;
}
#endif
