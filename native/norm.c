/* Column moments for batch normalization (Ioffe, Szegedy 2015; SAR sec. 3.4), which activate.c applies. Statistics are float64;
 * ranks merge (count, mean, m2), never E[x^2] - mean^2, which cancels. */
#ifndef T
#include "sarlite.h"
#define KERNEL "norm.c"
#include "each_float.h"
#else

/* Welford's update over the rows begin .. end: mean and sum of squared deviations of each column. */
SAR_CLONES static void NAME(moments_rows)(double *restrict mean, double *restrict m2, const T *restrict x, int64_t n_feat,
                                          int64_t begin, int64_t end)
{
    for (int64_t f = 0; f < n_feat; f++) mean[f] = m2[f] = 0;
    for (int64_t r = begin; r < end; r++) {
        const T *restrict row = x + r * n_feat;
        double share = 1.0 / (double)(r - begin + 1);
        for (int64_t f = 0; f < n_feat; f++) {
            double d = (double)row[f] - mean[f];
            mean[f] += d * share;
            m2[f] += d * ((double)row[f] - mean[f]);
        }
    }
}

/* mean[f] = sum_r x[r,f] / n_rows;  m2[f] = sum_r (x[r,f] - mean[f])^2. Each thread takes a range of rows (Welford); the ranges are
 * merged in thread order (Chan, Golub, LeVeque 1979). No rows: zeros.
 *
 * inputs   x (n_rows, n_feat)
 * output   mean, m2 (n_feat), overwritten; workspace (n_threads, 2, n_feat)
 * cost     O(n_rows * n_feat)
 */
int NAME(sar_column_moments_forward)(double *restrict mean, double *restrict m2, double *restrict workspace,
                                     const T *restrict x, int64_t n_threads, int64_t n_rows, int64_t n_feat)
{
    int n_parts = 1;
#pragma omp parallel num_threads((int)n_threads)
    {
        int64_t rank = sar_team_rank(), size = sar_team_size();
        double *part = workspace + rank * 2 * n_feat;
        NAME(moments_rows)(part, part + n_feat, x, n_feat, sar_split(n_rows, rank, size), sar_split(n_rows, rank + 1, size));
#pragma omp single
        n_parts = (int)size;
    }
    for (int64_t f = 0; f < n_feat; f++) mean[f] = m2[f] = 0;
    for (int64_t t = 0, n = 0; t < n_parts; t++) {
        int64_t n_new = sar_split(n_rows, t + 1, n_parts) - sar_split(n_rows, t, n_parts);
        const double *part = workspace + t * 2 * n_feat;
        if (n_new == 0) continue;
        double share = (double)n_new / (double)(n + n_new);
        for (int64_t f = 0; f < n_feat; f++) {
            double d = part[f] - mean[f];
            mean[f] += d * share;
            m2[f] += part[n_feat + f] + d * d * (double)n * share;
        }
        n += n_new;
    }
    return SAR_OK;
}
#endif
