/* Sums over rows on a grid (exact.inc.h), what their grids are made of, and functions: the same bits for any order of
 * rows, threads and instruction set. */
#ifndef T
#include "sarlite.h"
#define EXACT_DEPTH 128         /* rows of a block of products, which are added to memory after it */
#define EXACT_ROWS 4            /* of a tile of products */
#define EXACT_WIDE ((int)(SAR_REGISTER / 8))
#define EXACT_COLUMNS (2 * EXACT_WIDE)
typedef double exact_reg __attribute__((vector_size(SAR_REGISTER), aligned(8), may_alias));
typedef int64_t exact_bits __attribute__((vector_size(SAR_REGISTER), aligned(8), may_alias));
enum { SAR_EXP = 0, SAR_LOG = 1, SAR_EXPM1_NEGATIVE = 2 };

/* log(x) of a finite x > 0: x = 2^e f, f in [sqrt(1/2), sqrt(2)), log f = 2 atanh(s), s = (f - 1) / (f + 1), |s| <
 * 0.172, by the series up to s^23, whose rest is below 2^-63. e ln 2 comes in two parts, of which the first has no
 * rounding. The error is below one unit in the last place, plus half a one where it is rounded to float. */
SAR_INLINE double SAR_PASTE(exact_log, _of, ISA)(double x)
{
    union { double f; uint64_t i; } u = {.f = x};
    int64_t e = 0;
    if (x < 0x1p-1022) u.f = x * 0x1p54, e = -54;
    e += (int64_t)(u.i >> 52) - 1023;
    u.i = (u.i & 0x000fffffffffffff) | 0x3ff0000000000000;
    if (u.f > 1.4142135623730951) u.f *= 0.5, e++;
    double f = u.f - 1, s = f / (2 + f), z = s * s, y = 1.0 / 23;
    for (int k = 21; k > 1; k -= 2) y = y * z + 1.0 / k;
    /* log f = f - s (f - 2 z y), which loses no digits of f */
    double n = (double)e, part = n * 1.9082149292705877e-10 - s * (f - 2 * z * y);
    return n * 0x1.62e42feep-1 + (f + part);
}
#define KERNEL "exact.c"
#include "each_float.h"
#else
#include "exp.inc.h"
#include "exact.inc.h"

/* out[f] = max_r |scale[r] x[r,f]| over finite values, 0 where there is none
 *
 * inputs   x (n_rows, n_feat), scale (n_rows) or NULL: 1
 * output   out (n_feat), overwritten; workspace (n_threads, n_feat)
 * cost     O(n_rows * n_feat)
 */
int NAME(sar_exact_largest)(double *restrict out, double *restrict workspace, const T *restrict x, const T *restrict scale,
                            int64_t n_threads, int64_t n_rows, int64_t n_feat)
{
    memset(workspace, 0, (size_t)(n_threads * n_feat) * sizeof(double));
#pragma omp parallel num_threads((int)n_threads)
    {
        double *restrict own = workspace + sar_team_rank() * n_feat;
        int64_t end = sar_split(n_rows, sar_team_rank() + 1, sar_team_size());
        for (int64_t r = sar_split(n_rows, sar_team_rank(), sar_team_size()); r < end; r++) {
            double c = scale ? (double)scale[r] : 1;
            for (int64_t f = 0; f < n_feat; f++) {
                double v = fabs(c * (double)x[r * n_feat + f]);
                own[f] = v > own[f] && v < INFINITY ? v : own[f];
            }
        }
    }
    memset(out, 0, (size_t)n_feat * sizeof(double));
    for (int64_t t = 0; t < n_threads; t++)
        for (int64_t f = 0; f < n_feat; f++) out[f] = workspace[t * n_feat + f] > out[f] ? workspace[t * n_feat + f] : out[f];
    return SAR_OK;
}

/* out[f] = sum_r (1 + floor(2^20 (x[r,f] inverse[f])^2)), |x| inverse <= 1: a whole number that is 2^20 times a bound of
 * the sum of squares. What is not finite counts as 0.
 *
 * inputs   x (n_rows, n_feat), inverse (n_feat)
 * output   out (n_feat), overwritten; workspace (n_threads, n_feat)
 * cost     O(n_rows * n_feat)
 */
int NAME(sar_exact_squares)(double *restrict out, double *restrict workspace, const T *restrict x, const double *restrict inverse,
                            int64_t n_threads, int64_t n_rows, int64_t n_feat)
{
    memset(workspace, 0, (size_t)(n_threads * n_feat) * sizeof(double));
#pragma omp parallel num_threads((int)n_threads)
    {
        double *restrict own = workspace + sar_team_rank() * n_feat;
        int64_t end = sar_split(n_rows, sar_team_rank() + 1, sar_team_size());
        for (int64_t r = sar_split(n_rows, sar_team_rank(), sar_team_size()); r < end; r++)
            for (int64_t f = 0; f < n_feat; f++) {
                double v = (double)x[r * n_feat + f] * inverse[f];
                v = v * v * 1048576;
                own[f] += 1 + (double)(int32_t)(v <= 1048576 ? v : 0);
            }
    }
    memset(out, 0, (size_t)n_feat * sizeof(double));
    for (int64_t t = 0; t < n_threads; t++) for (int64_t f = 0; f < n_feat; f++) out[f] += workspace[t * n_feat + f];
    return SAR_OK;
}

/* A tile: sum[p][q] += grid(a[r][p] g[r][q]) over `depth` rows, from m[p][q] to sums (EXACT_ROWS, EXACT_COLUMNS) a level.
 * Of float a product is exact and at most 48 bits wide. With its last bit set, which is beneath all grids, it is no
 * tie, so it is added to m's own sum in one rounding, the same in any order. */
SAR_INLINE void NAME(exact_tile)(double *restrict sum, const double *restrict m, double step, const double *restrict a,
                                 const double *restrict g, int64_t depth)
{
    exact_reg s[EXACT_ROWS][2], from[EXACT_ROWS][2];
    for (int p = 0; p < EXACT_ROWS; p++)
        for (int v = 0; v < 2; v++) s[p][v] = from[p][v] = *(const exact_reg *)(m + p * EXACT_COLUMNS + v * EXACT_WIDE);
#if LEVELS == 1
    (void)step;
    for (int64_t r = 0; r < depth; r++, a += EXACT_ROWS, g += EXACT_COLUMNS) {
        const exact_reg g_r[2] = {*(const exact_reg *)g, *(const exact_reg *)(g + EXACT_WIDE)};
        for (int p = 0; p < EXACT_ROWS; p++)
            for (int v = 0; v < 2; v++) s[p][v] += (exact_reg)((exact_bits)(a[p] * g_r[v]) | 1);
    }
    for (int p = 0; p < EXACT_ROWS; p++)
        for (int v = 0; v < 2; v++) *(exact_reg *)(sum + p * EXACT_COLUMNS + v * EXACT_WIDE) = s[p][v] - from[p][v];
#else
    exact_reg t[EXACT_ROWS][2];
    for (int p = 0; p < EXACT_ROWS; p++) for (int v = 0; v < 2; v++) s[p][v] = t[p][v] = (exact_reg){0};
    for (int64_t r = 0; r < depth; r++, a += EXACT_ROWS, g += EXACT_COLUMNS) {
        const exact_reg g_r[2] = {*(const exact_reg *)g, *(const exact_reg *)(g + EXACT_WIDE)};
        for (int p = 0; p < EXACT_ROWS; p++)
            for (int v = 0; v < 2; v++) {
                const exact_reg product = a[p] * g_r[v], q = (product + from[p][v]) - from[p][v], fine = from[p][v] * step;
                s[p][v] += q;
                t[p][v] += (product - q + fine) - fine;
            }
    }
    for (int p = 0; p < EXACT_ROWS; p++)
        for (int v = 0; v < 2; v++) {
            *(exact_reg *)(sum + p * EXACT_COLUMNS + v * EXACT_WIDE) = s[p][v];
            *(exact_reg *)(sum + (EXACT_ROWS + p) * EXACT_COLUMNS + v * EXACT_WIDE) = t[p][v];
        }
#endif
}

/* packed[tile][r][i] = x[r * ld + tile * width + i] as double, r < depth; 0 beyond n columns. */
static void NAME(exact_pack)(double *restrict packed, const T *restrict x, int64_t ld, int64_t depth, int64_t n, int64_t width)
{
    for (int64_t first = 0; first < n; first += width)
        for (int64_t r = 0; r < depth; r++, packed += width)
            for (int64_t i = 0; i < width; i++) packed[i] = first + i < n ? (double)x[r * ld + first + i] : 0;
}

/* sum[level,p,q] = sum_r grid(a[r,p] g[r,q]), m = of_a[p] of_g[q], of the second level `step` times that
 *
 * inputs   a (k, m), g (k, n), of_a (m), of_g (n)
 * output   sum (LEVELS, m, n), overwritten; workspace (n_threads, LEVELS m n + EXACT_DEPTH (m + n + 64) + 512)
 * cost     O(k m n)
 */
int NAME(sar_exact_gemm_backward)(double *restrict sum, double *restrict workspace, const T *restrict a, const T *restrict g,
                                  const double *restrict of_a, const double *restrict of_g, double step, int64_t n_threads, int64_t m,
                                  int64_t n, int64_t k)
{
    const int64_t n_sums = LEVELS * m * n, share = n_sums + EXACT_DEPTH * (m + n + 64) + 512;
    memset(sum, 0, (size_t)n_sums * sizeof(double));
    int n_parts = 1;
#pragma omp parallel num_threads((int)n_threads)
    {
        double *own = workspace + sar_team_rank() * share, *a_pack = own + n_sums, *g_pack = a_pack + EXACT_DEPTH * (m + EXACT_ROWS);
        double grid[EXACT_ROWS * 16], tile[2 * EXACT_ROWS * 16];
        int64_t end = sar_split(k, sar_team_rank() + 1, sar_team_size());
        memset(own, 0, (size_t)n_sums * sizeof(double));
        for (int64_t r = sar_split(k, sar_team_rank(), sar_team_size()); r < end; r += EXACT_DEPTH) {
            int64_t depth = end - r < EXACT_DEPTH ? end - r : EXACT_DEPTH;
            NAME(exact_pack)(a_pack, a + r * m, m, depth, m, EXACT_ROWS);
            NAME(exact_pack)(g_pack, g + r * n, n, depth, n, EXACT_COLUMNS);
            for (int64_t p = 0; p < m; p += EXACT_ROWS)
                for (int64_t q = 0; q < n; q += EXACT_COLUMNS) {
                    int rows = m - p < EXACT_ROWS ? (int)(m - p) : EXACT_ROWS;
                    int columns = n - q < EXACT_COLUMNS ? (int)(n - q) : EXACT_COLUMNS;
                    for (int i = 0; i < EXACT_ROWS; i++)
                        for (int j = 0; j < EXACT_COLUMNS; j++)
                            grid[i * EXACT_COLUMNS + j] = i < rows && j < columns ? of_a[p + i] * of_g[q + j] : 1;
                    NAME(exact_tile)(tile, grid, step, a_pack + p * depth, g_pack + q * depth, depth);
                    for (int level = 0; level < LEVELS; level++)
                        for (int i = 0; i < rows; i++)
                            for (int j = 0; j < columns; j++)
                                own[(level * m + p + i) * n + q + j] += tile[(level * EXACT_ROWS + i) * EXACT_COLUMNS + j];
                }
        }
#pragma omp single
        n_parts = sar_team_size();
    }
    for (int64_t t = 0; t < n_parts; t++) for (int64_t f = 0; f < n_sums; f++) sum[f] += workspace[t * share + f];
    return SAR_OK;
}

/* out = a @ b, added to out if `accumulate`: each value is one sum in float64 in ascending order, rounded once
 *
 * inputs   a (m, k), b (k, n)
 * output   out (m, n); workspace (n_threads, n)
 * cost     O(m n k); of float gemm.c's double product of the same values has the same bits, and is faster
 */
int NAME(sar_exact_gemm_forward)(T *restrict out, double *restrict workspace, const T *restrict a, const T *restrict b, int accumulate,
                                 int64_t n_threads, int64_t m, int64_t n, int64_t k)
{
#pragma omp parallel for num_threads((int)n_threads) schedule(static)
    for (int64_t r = 0; r < m; r++) {
        double *restrict row = workspace + sar_team_rank() * n;
        for (int64_t j = 0; j < n; j++) row[j] = accumulate ? (double)out[r * n + j] : 0;
        for (int64_t p = 0; p < k; p++) {
            const double value = (double)a[r * k + p];
            for (int64_t j = 0; j < n; j++) row[j] += value * (double)b[p * n + j];
        }
        for (int64_t j = 0; j < n; j++) out[r * n + j] = (T)row[j];
    }
    return SAR_OK;
}

/* out[i] = exp(x[i]), log(x[i]) or, of x <= 0, expm1(x[i]). Of float a logarithm is made in double. Errors: exp and
 * expm1 2 units in the last place, log 1. Overflow is infinity; log of 0 is -infinity, of less NaN.
 *
 * output   out (n), overwritten
 * cost     O(n)
 */
int NAME(sar_exact_function)(T *restrict out, const T *restrict x, int function, int64_t n)
{
    const T most = FLOAT_BITS == 32 ? (T)88.722839 : (T)709.782712893384;
    int team = sar_team(16 * n);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        if (function == SAR_EXP) out[i] = x[i] > most ? (T)INFINITY : NAME(exp_negative)(x[i]);
        else if (function == SAR_EXPM1_NEGATIVE) out[i] = NAME(expm1_negative)(x[i]);
        else if (x[i] > 0 && x[i] < INFINITY) out[i] = (T)SAR_PASTE(exact_log, _of, ISA)((double)x[i]);
        else out[i] = x[i] == 0 ? (T)-INFINITY : x[i] > 0 ? x[i] : (T)NAN;
    }
    return SAR_OK;
}
#endif
