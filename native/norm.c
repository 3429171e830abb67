/* Batch normalization (Ioffe, Szegedy 2015; SAR sec. 3.4): column moments, the affine map, and its gradient. Statistics are float64;
 * ranks merge (count, mean, m2), never E[x^2] - mean^2, which cancels. */
#ifndef T
#include "sarlite.h"
#define KERNEL "norm.c"
#include "each_float.h"
#else

/* Welford's update over the rows begin .. end: mean and sum of squared deviations of each column. */
static void NAME(moments_rows)(double *restrict mean, double *restrict m2, const T *restrict x, int64_t n_feat,
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

/* The rows begin .. end of sar_batch_norm_forward. */
static void NAME(batch_norm_rows)(T *restrict out, const T *restrict x, const double *restrict mean,
                                             const double *restrict inv_std, const T *restrict gamma, const T *restrict beta,
                                             int64_t n_feat, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++)
        for (int64_t f = 0; f < n_feat; f++) {
            double normal = ((double)x[r * n_feat + f] - mean[f]) * inv_std[f];
            out[r * n_feat + f] = (T)(normal * (double)gamma[f] + (double)beta[f]);
        }
}

/* out[r,f] = (x[r,f] - mean[f]) * inv_std[f] * gamma[f] + beta[f]
 *
 * inputs   x (n_rows, n_feat); mean, inv_std, gamma, beta (n_feat)
 * output   out (n_rows, n_feat), overwritten
 * cost     O(n_rows * n_feat)
 */
int NAME(sar_batch_norm_forward)(T *restrict out, const T *restrict x, const double *restrict mean,
                                 const double *restrict inv_std, const T *restrict gamma, const T *restrict beta,
                                 int64_t n_rows, int64_t n_feat)
{
    int team = sar_team(n_rows * n_feat);
#pragma omp parallel num_threads(team)
    NAME(batch_norm_rows)(out, x, mean, inv_std, gamma, beta, n_feat, sar_split(n_rows, sar_team_rank(), sar_team_size()),
                          sar_split(n_rows, sar_team_rank() + 1, sar_team_size()));
    return SAR_OK;
}

/* The rows begin .. end of sar_batch_norm_sums_backward. */
static void NAME(sums_rows)(double *restrict sum_g, double *restrict sum_gx, const T *restrict g,
                                       const T *restrict x, const double *restrict mean, const double *restrict inv_std,
                                       int64_t n_feat, int64_t begin, int64_t end)
{
    for (int64_t f = 0; f < n_feat; f++) sum_g[f] = sum_gx[f] = 0;
    for (int64_t r = begin; r < end; r++)
        for (int64_t f = 0; f < n_feat; f++) {
            double normal = ((double)x[r * n_feat + f] - mean[f]) * inv_std[f];
            sum_g[f] += (double)g[r * n_feat + f];
            sum_gx[f] += (double)g[r * n_feat + f] * normal;
        }
}

/* sum_g[f] = sum_r g[r,f];  sum_gx[f] = sum_r g[r,f] * xhat[r,f],   xhat = (x - mean) * inv_std. The gradients of beta and gamma.
 *
 * inputs   g, x (n_rows, n_feat); mean, inv_std (n_feat)
 * output   sum_g, sum_gx (n_feat), overwritten; workspace (n_threads, 2, n_feat), added in thread order
 * cost     O(n_rows * n_feat)
 */
int NAME(sar_batch_norm_sums_backward)(double *restrict sum_g, double *restrict sum_gx, double *restrict workspace,
                                       const T *restrict g, const T *restrict x, const double *restrict mean,
                                       const double *restrict inv_std, int64_t n_threads, int64_t n_rows, int64_t n_feat)
{
    int n_parts = 1;
#pragma omp parallel num_threads((int)n_threads)
    {
        int64_t rank = sar_team_rank(), size = sar_team_size();
        double *part = workspace + rank * 2 * n_feat;
        NAME(sums_rows)(part, part + n_feat, g, x, mean, inv_std, n_feat, sar_split(n_rows, rank, size),
                        sar_split(n_rows, rank + 1, size));
#pragma omp single
        n_parts = (int)size;
    }
    for (int64_t f = 0; f < n_feat; f++) sum_g[f] = sum_gx[f] = 0;
    for (int64_t t = 0; t < n_parts; t++)
        for (int64_t f = 0; f < n_feat; f++) {
            sum_g[f] += workspace[t * 2 * n_feat + f];
            sum_gx[f] += workspace[t * 2 * n_feat + n_feat + f];
        }
    return SAR_OK;
}

/* The rows begin .. end of sar_batch_norm_backward. */
static void NAME(batch_norm_backward_rows)(T *restrict dx, const T *restrict g, const T *restrict x,
                                                      const double *restrict mean, const double *restrict inv_std,
                                                      const T *restrict gamma, const double *restrict mean_g,
                                                      const double *restrict mean_gx, int64_t n_feat, int64_t begin,
                                                      int64_t end)
{
    for (int64_t r = begin; r < end; r++)
        for (int64_t f = 0; f < n_feat; f++) {
            double normal = ((double)x[r * n_feat + f] - mean[f]) * inv_std[f];
            double centred = (double)g[r * n_feat + f] - mean_g[f] - normal * mean_gx[f];
            dx[r * n_feat + f] = (T)((double)gamma[f] * inv_std[f] * centred);
        }
}

/* dx[r,f] = gamma[f] * inv_std[f] * (g[r,f] - mean_g[f] - xhat[r,f] * mean_gx[f]); mean_g, mean_gx over the rows of all ranks.
 *
 * inputs   g, x (n_rows, n_feat); mean, inv_std, gamma, mean_g, mean_gx (n_feat)
 * output   dx (n_rows, n_feat), overwritten
 * cost     O(n_rows * n_feat)
 */
int NAME(sar_batch_norm_backward)(T *restrict dx, const T *restrict g, const T *restrict x, const double *restrict mean,
                                  const double *restrict inv_std, const T *restrict gamma, const double *restrict mean_g,
                                  const double *restrict mean_gx, int64_t n_rows, int64_t n_feat)
{
    int team = sar_team(n_rows * n_feat);
#pragma omp parallel num_threads(team)
    NAME(batch_norm_backward_rows)(dx, g, x, mean, inv_std, gamma, mean_g, mean_gx, n_feat,
                                   sar_split(n_rows, sar_team_rank(), sar_team_size()),
                                   sar_split(n_rows, sar_team_rank() + 1, sar_team_size()));
    return SAR_OK;
}
#endif
