/* The parts of attention that work on a node's own row: the end of the online softmax, and delta = sum_d g * out. */
#ifndef T
#include "sarlite.h"
#define KERNEL "attend_rows.c"
#include "each_float.h"
#else

/* acc[r,:] /= l[r];  m[r] = m[r] + log(l[r])   (log-sum-exp, SAR sec. 3.4). Rows without edges (l = 0): acc = 0, m = 0.
 *
 * output   m, l (n_rows), acc (n_rows, n_feat), n_rows = nodes * heads: m and acc updated, l kept
 * cost     O(n_rows * n_feat)
 */
int NAME(sar_attend_finish_forward)(T *restrict m, T *restrict l, T *restrict acc, int64_t n_rows, int64_t n_feat)
{
    int team = sar_team(n_rows * n_feat);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t r = 0; r < n_rows; r++) {
        T *restrict row = acc + r * n_feat;
        T scale = l[r] == 0 ? 0 : 1 / l[r];
        for (int64_t f = 0; f < n_feat; f++) row[f] *= scale;
        m[r] = l[r] == 0 ? 0 : m[r] + (T)log((double)l[r]);
    }
    return SAR_OK;
}

/* The rows begin .. end of sar_row_dot_forward. */
static void NAME(row_dot_rows)(T *restrict out, const T *restrict a, const T *restrict b, int64_t n_feat,
                                          int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++) {
        const T *restrict a_r = a + r * n_feat, *restrict b_r = b + r * n_feat;
        T t = 0;
#pragma omp simd reduction(+ : t)
        for (int64_t f = 0; f < n_feat; f++) t += a_r[f] * b_r[f];
        out[r] = t;
    }
}

/* out[r] = sum_f a[r,f] * b[r,f]
 *
 * inputs   a, b (n_rows, n_feat)
 * output   out (n_rows), overwritten
 * cost     O(n_rows * n_feat)
 */
int NAME(sar_row_dot_forward)(T *restrict out, const T *restrict a, const T *restrict b, int64_t n_rows, int64_t n_feat)
{
    int team = sar_team(n_rows * n_feat);
#pragma omp parallel num_threads(team)
    NAME(row_dot_rows)(out, a, b, n_feat, sar_split(n_rows, sar_team_rank(), sar_team_size()),
                       sar_split(n_rows, sar_team_rank() + 1, sar_team_size()));
    return SAR_OK;
}
#endif
