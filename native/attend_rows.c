/* Parts of attention that need no edges: the end of the online softmax, delta = sum_d g * out, and the sum of ddst over
 * threads. */
#ifndef T
#include "sarlite.h"
#define KERNEL "attend_rows.c"
#include "each_float.h"
#else

/* acc[r,:] /= l[r];  l[r] = 1 / l[r]   (SAR sec. 3.4). Rows without edges of any weight (l = 0): acc, l, m = 0.
 *
 * output   m, l (n_rows), acc (n_rows, n_feat), n_rows = nodes * heads: updated
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
        if (l[r] == 0) m[r] = 0;
        l[r] = scale;
    }
    return SAR_OK;
}

/* ddst[s] += sum_t sums[t,s], in the order of t: the end of sar_attend_backward, after all blocks of edges.
 *
 * inputs   sums (n_threads, n_scores), n_scores = nodes * heads
 * output   ddst (n_scores), accumulated
 * cost     O(n_threads * n_scores)
 */
int NAME(sar_attend_backward_finish)(T *restrict ddst, const double *restrict sums, int64_t n_threads, int64_t n_scores)
{
    int team = sar_team(n_threads * n_scores);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t s = 0; s < n_scores; s++) {
        double sum = sums[s];
        for (int64_t t = 1; t < n_threads; t++) sum += sums[t * n_scores + s];
        ddst[s] += (T)sum;
    }
    return SAR_OK;
}

/* Compute the rows begin .. end of sar_row_dot_forward. */
static void NAME(row_dot_rows)(T *restrict out, const T *restrict a, const T *restrict b, int64_t n_feat,
                               int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++) {
        const T *restrict a_r = a + r * n_feat, *restrict b_r = b + r * n_feat;
        T t[LANES] = {0};
        int64_t whole = n_feat / LANES * LANES;
        for (int64_t f = 0; f < whole; f += LANES) for (int u = 0; u < LANES; u++) t[u] += a_r[f + u] * b_r[f + u];
        for (int64_t f = whole; f < n_feat; f++) t[f - whole] += a_r[f] * b_r[f];
        for (int half = LANES / 2; half; half /= 2) for (int u = 0; u < half; u++) t[u] += t[u + half];
        out[r] = t[0];
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
