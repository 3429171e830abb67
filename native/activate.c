/* Batch norm or bias, activation and dropout in one pass over memory; and their gradient (DistGNN-MB 3.3).
 *
 *   y = (x - mean) * inv_std * gamma + beta   in float64, then rounded to T;   without mean y = x + beta;   without
 *   beta y = x
 *   out = f(y) * k,   k = 0 or 1 / (1 - p) as in dropout.c;   without ids k = 1
 *
 * No intermediate array is stored. A row is processed in blocks of columns that stay in the first-level cache. */
#ifndef T
#include "philox.h"
enum { SAR_IDENTITY = 0, SAR_RELU = 1, SAR_ELU = 2 };
#define ACTIVATE_AHEAD 512      /* values: the processor's own prefetcher ends at a page */
#define KERNEL "activate.c"
#include "each_float.h"
#else
#include "exp.inc.h"
#include "mask.inc.h"

/* Prefetch n values of up to three arrays that stand ACTIVATE_AHEAD after x[at], where all are before x[end]. */
SAR_INLINE void NAME(activation_ahead)(const T *x, const T *y, const T *z, int64_t at, int n, int64_t end)
{
    at += ACTIVATE_AHEAD;
    if (at + n > end) return;
    for (int f = 0; f < n; f += 64 / (int)sizeof(T)) {
        SAR_PREFETCH_NEAR(x + at + f);
        if (y) SAR_PREFETCH_NEAR(y + at + f);
        if (z) SAR_PREFETCH_NEAR(z + at + f);
    }
}

/* Compute y[f] of row r for the feature columns first .. first + n. */
SAR_INLINE void NAME(activation_input)(T *restrict y, const NAME(sar_activation) *a, int64_t r, int64_t first, int n)
{
    const T *restrict row = a->x + r * a->n_feat + first;
    if (a->mean) {
        const double *restrict mean = a->mean + first, *restrict inv_std = a->inv_std + first;
        const T *restrict gamma = a->gamma + first, *restrict beta = a->beta + first;
        for (int f = 0; f < n; f++) y[f] = (T)(((double)row[f] - mean[f]) * inv_std[f] * (double)gamma[f] + (double)beta[f]);
    } else if (a->beta) {
        const T *restrict beta = a->beta + first;
        for (int f = 0; f < n; f++) y[f] = row[f] + beta[f];
    } else
        memcpy(y, row, (size_t)n * sizeof(T));
}

/* Compute the rows begin .. end of sar_activate_forward. */
static void NAME(activate_rows)(T *out, const NAME(sar_activation) *a, int64_t begin, int64_t end)
{
    const T alpha = (T)a->alpha;
    T y[MASK_COLUMNS], factor[MASK_COLUMNS];
    for (int64_t r = begin; r < end; r++)
        for (int64_t first = 0; first < a->n_feat; first += MASK_COLUMNS) {
            int n = a->n_feat - first < MASK_COLUMNS ? (int)(a->n_feat - first) : MASK_COLUMNS;
            T *to = out + r * a->n_feat + first;
            NAME(activation_ahead)(a->x, out, NULL, r * a->n_feat + first, n, end * a->n_feat);
            NAME(activation_input)(y, a, r, first, n);
            if (a->kind == SAR_RELU) for (int f = 0; f < n; f++) y[f] = y[f] <= 0 ? 0 : y[f];     /* NaN stays, -0 does not */
            else if (a->kind == SAR_ELU)
                for (int f = 0; f < n; f++)                         /* a sum, not a choice, so that it vectorises */
                    y[f] = (y[f] > 0 ? y[f] : 0) + alpha * NAME(expm1_negative)(y[f] > 0 ? 0 : y[f]);
            if (a->dropout.ids) {
                NAME(dropout_factors)(factor, &a->dropout, r, first, n);
                for (int f = 0; f < n; f++) {                       /* not y * 0, which is NaN where y is infinite */
                    T kept = y[f] * factor[f];
                    to[f] = factor[f] == 0 ? 0 : kept;
                }
            } else
                memcpy(to, y, (size_t)n * sizeof(T));
        }
}

/* out = f(y) * k, as above
 *
 * inputs   a: its fields are described in prototypes_float.h; with mean, beta is not NULL
 * output   out (n_rows, n_feat), overwritten; it may be a's x
 * cost     O(n_rows * n_feat); one pass
 */
int NAME(sar_activate_forward)(T *out, const NAME(sar_activation) *a)
{
    int team = sar_team(a->n_rows * a->n_feat);
#pragma omp parallel num_threads(team)
    NAME(activate_rows)(out, a, sar_split(a->n_rows, sar_team_rank(), sar_team_size()),
                        sar_split(a->n_rows, sar_team_rank() + 1, sar_team_size()));
    return SAR_OK;
}

/* dy[f] = g * k * f'(y) of row r. For ReLU the sign of out tells both k and f'(y), so no random numbers are drawn. */
SAR_INLINE void NAME(activation_slope)(T *restrict dy, const T *g, const T *restrict out, const NAME(sar_activation) *a, int64_t r,
                                       int64_t first, int n)
{
    const T *restrict g_row = g + r * a->n_feat + first, alpha = (T)a->alpha;
    T y[MASK_COLUMNS];
    if (a->kind == SAR_RELU) {
        const T *restrict row = out + r * a->n_feat + first;
        T keep = (T)(1 / (1 - a->dropout.p));
        for (int f = 0; f < n; f++) {                               /* not g * 0, which is NaN where g is infinite */
            T kept = g_row[f] * keep;
            dy[f] = row[f] > 0 ? kept : 0;
        }
        return;
    }
    if (a->dropout.ids) {
        NAME(dropout_factors)(dy, &a->dropout, r, first, n);
        for (int f = 0; f < n; f++) {
            T kept = g_row[f] * dy[f];
            dy[f] = dy[f] == 0 ? 0 : kept;
        }
    } else
        memcpy(dy, g_row, (size_t)n * sizeof(T));
    if (a->kind == SAR_ELU) {
        NAME(activation_input)(y, a, r, first, n);
        for (int f = 0; f < n; f++) dy[f] *= (y[f] > 0 ? 1 : alpha) + alpha * NAME(expm1_negative)(y[f] > 0 ? 0 : y[f]);
    }
}

/* Compute the rows begin .. end of sar_activate_backward; sums (2, n_feat) belong to this thread. */
static void NAME(activate_backward_rows)(T *dx, double *restrict sums, const T *g, const T *restrict out,
                                         const double *restrict means, const NAME(sar_activation) *a, int64_t begin, int64_t end)
{
    T dy[MASK_COLUMNS];
    if (sums) memset(sums, 0, 2 * (size_t)a->n_feat * sizeof(double));
    for (int64_t r = begin; r < end; r++)
        for (int64_t first = 0; first < a->n_feat; first += MASK_COLUMNS) {
            int n = a->n_feat - first < MASK_COLUMNS ? (int)(a->n_feat - first) : MASK_COLUMNS;
            NAME(activation_ahead)(g, a->kind == SAR_RELU ? out : NULL, a->mean ? a->x : NULL, r * a->n_feat + first, n, end * a->n_feat);
            NAME(activation_slope)(dy, g, out, a, r, first, n);
            if (sums) {
                double *restrict sum = sums + first;
                for (int f = 0; f < n; f++) sum[f] += (double)dy[f];
            }
            if (a->mean) {
                const double *restrict mean = a->mean + first, *restrict inv_std = a->inv_std + first;
                const T *restrict row = a->x + r * a->n_feat + first;
                if (sums) {
                    double *restrict sum = sums + a->n_feat + first;
                    for (int f = 0; f < n; f++) sum[f] += (double)dy[f] * (((double)row[f] - mean[f]) * inv_std[f]);
                }
                if (dx && !means) memcpy(dx + r * a->n_feat + first, dy, (size_t)n * sizeof(T));
                else if (dx) {
                    const double *restrict mean_dy = means + first, *restrict mean_dyx = means + a->n_feat + first;
                    const T *restrict gamma = a->gamma + first;
                    T *restrict to = dx + r * a->n_feat + first;
                    for (int f = 0; f < n; f++) {
                        double normal = ((double)row[f] - mean[f]) * inv_std[f];
                        to[f] = (T)((double)gamma[f] * inv_std[f] * ((double)dy[f] - mean_dy[f] - normal * mean_dyx[f]));
                    }
                }
            } else if (dx)
                memcpy(dx + r * a->n_feat + first, dy, (size_t)n * sizeof(T));
        }
}

/* dy = g * k * f'(y);   sums[0] = sum_r dy,   sums[1] = sum_r dy * xhat (0 without mean),   xhat = (x - mean) *
 * inv_std
 * dx = gamma * inv_std * (dy - means[0] - xhat * means[1]);   without mean or means dx = dy
 *
 * inputs   g (n_rows, n_feat); x (n_rows, n_feat), read with mean or SAR_ELU; out (n_rows, n_feat), read with
 *          SAR_RELU; means (2, n_feat), read with mean and dx: sums over the rows of all ranks, divided by their
 *          number; the rest as in forward
 * outputs  dx (n_rows, n_feat) or NULL, overwritten; it may be g; sums (2, n_feat) or NULL, overwritten;
 *          workspace (n_threads, 2, n_feat), added in thread order, NULL where sums is
 * cost     O(n_rows * n_feat); one pass. With batch norm two calls: the sums, then dx, for which dy is computed
 *          again.
 */
int NAME(sar_activate_backward)(T *dx, double *restrict sums, double *restrict workspace, const T *g, const T *restrict out,
                                const double *restrict means, const NAME(sar_activation) *a, int64_t n_threads)
{
    const int64_t n_rows = a->n_rows, n_feat = a->n_feat;
    int n_parts = 1;
#pragma omp parallel num_threads((int)n_threads)
    {
        int64_t rank = sar_team_rank(), size = sar_team_size();
        NAME(activate_backward_rows)(dx, workspace ? workspace + rank * 2 * n_feat : NULL, g, out, means, a,
                                     sar_split(n_rows, rank, size), sar_split(n_rows, rank + 1, size));
#pragma omp single
        n_parts = (int)size;
    }
    if (sums) memset(sums, 0, 2 * (size_t)n_feat * sizeof(double));
    for (int64_t t = 0; sums && t < n_parts; t++)
        for (int64_t f = 0; f < 2 * n_feat; f++) sums[f] += workspace[t * 2 * n_feat + f];
    return SAR_OK;
}
#endif
