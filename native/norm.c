/* Column moments for batch normalization (Ioffe, Szegedy 2015; SAR sec. 3.4), which activate.c applies. Statistics
 * are float64; ranks merge (count, mean, m2), never E[x^2] - mean^2, which cancels. */
#ifndef T
#include "sarlite.h"
#define KERNEL "norm.c"
#include "each_float.h"
#else
#ifndef MOMENT_ROWS
#define MOMENT_ROWS 64
#define MOMENT_COLUMNS 128      /* a block of both stays in the first cache */
#endif

/* Merge the moments (new_mean, new_m2) of n_new > 0 rows into the moments of n rows (Chan, Golub, LeVeque 1979). All
 * kernels merge moments by this function. */
SAR_INLINE void NAME(merge_moments)(double *restrict mean, double *restrict m2, int64_t n, const double *restrict new_mean,
                                    const double *restrict new_m2, int64_t n_new, int64_t n_feat)
{
    double share = (double)n_new / (double)(n + n_new);
    for (int64_t f = 0; f < n_feat; f++) {
        double d = new_mean[f] - mean[f];
        mean[f] += d * share;
        m2[f] += new_m2[f] + d * d * (double)n * share;
    }
}

/* Mean and sum of squared deviations of each column over the rows begin .. end. MOMENT_ROWS rows at a time are processed
 * in two passes, and merged into the moments of earlier rows. A mean is computed as the first row plus the mean
 * difference from the first row. So the mean of a constant column is exactly that constant, on any number of ranks, and
 * the normalized column is exactly 0, not a rounding error whose sign a relu would use. */
static void NAME(moments_rows)(double *restrict mean, double *restrict m2, const T *restrict x, int64_t n_feat, int64_t begin,
                               int64_t end)
{
    double block_mean[MOMENT_COLUMNS], block_m2[MOMENT_COLUMNS];
    for (int64_t f = 0; f < n_feat; f++) mean[f] = m2[f] = 0;
    for (int64_t r = begin; r < end; r += MOMENT_ROWS)
        for (int64_t first = 0; first < n_feat; first += MOMENT_COLUMNS) {
            int n = n_feat - first < MOMENT_COLUMNS ? (int)(n_feat - first) : MOMENT_COLUMNS;
            int rows = end - r < MOMENT_ROWS ? (int)(end - r) : MOMENT_ROWS;
            const T *restrict from = x + r * n_feat + first;
            for (int f = 0; f < n; f++) block_mean[f] = block_m2[f] = 0;
            for (int k = 1; k < rows; k++)
                for (int f = 0; f < n; f++) block_mean[f] += (double)from[k * n_feat + f] - (double)from[f];
            for (int f = 0; f < n; f++) block_mean[f] = (double)from[f] + block_mean[f] / rows;
            for (int k = 0; k < rows; k++)
                for (int f = 0; f < n; f++) {
                    double d = (double)from[k * n_feat + f] - block_mean[f];
                    block_m2[f] += d * d;
                }
            NAME(merge_moments)(mean + first, m2 + first, r - begin, block_mean, block_m2, rows, n);
        }
}

/* mean[f] = sum_r x[r,f] / n_rows;  m2[f] = sum_r (x[r,f] - mean[f])^2. Each thread takes a range of rows; the
 * ranges are merged in thread order. No rows: zeros.
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
        NAME(merge_moments)(mean, m2, n, part, part + n_feat, n_new, n_feat);
        n += n_new;
    }
    return SAR_OK;
}
#endif
