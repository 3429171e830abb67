/* Sums over rows on a grid (exact.inc.h), the bounds that grids are chosen from, and elementary functions: the same bits
 * for any order of rows, threads and instruction set. */
#ifndef T
#include "sarlite.h"
#define EXACT_WIDE ((int)(SAR_REGISTER / 8))
#define EXACT_COLUMNS (2 * EXACT_WIDE)
#define EXACT_ROWS (SAR_REGISTER == 64 ? 12 : 6)    /* of a tile of products, of two registers each */
#define EXACT_FINE 4            /* rows of a tile of two levels */
typedef double exact_reg __attribute__((vector_size(SAR_REGISTER), aligned(8), may_alias));
#ifdef __clang__
#define FUSED
#pragma clang fp contract(fast)
#else
#define FUSED __attribute__((optimize("fp-contract=fast")))
#endif
/* The larger of `old` and |v|; `old` if v is not finite. */
SAR_INLINE double SAR_PASTE(exact_larger, _of, ISA)(double old, double v)
{
    v = fabs(v);
    return v > old && v < INFINITY ? v : old;
}
#define LARGER SAR_PASTE(exact_larger, _of, ISA)

/* 2^20 v^2, rounded to an integer, for |v| <= 1; 0 for other v. */
SAR_INLINE double SAR_PASTE(exact_square, _of, ISA)(double v)
{
    v *= v;
    return ((v <= 1 ? v : 0) * 1048576 + 0x1p52) - 0x1p52;
}
#define SQUARE SAR_PASTE(exact_square, _of, ISA)

enum { SAR_LARGEST = 0, SAR_SQUARES = 1, SAR_SUM = 2 };
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

/* out[f] = max_r |scale[r] x[r,f]| over finite values, or 0 if there are none
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
            for (int64_t f = 0; f < n_feat; f++) own[f] = LARGER(own[f], c * (double)x[r * n_feat + f]);
        }
    }
    memset(out, 0, (size_t)n_feat * sizeof(double));
    for (int64_t t = 0; t < n_threads; t++)
        for (int64_t f = 0; f < n_feat; f++) out[f] = workspace[t * n_feat + f] > out[f] ? workspace[t * n_feat + f] : out[f];
    return SAR_OK;
}

/* out[f] = sum_r (1 + round(2^20 (x[r,f] inverse[f])^2)), with |x| inverse <= 1: an integer that is at least 2^20 times
 * the sum of squares. Values that are not finite count as 0.
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
            for (int64_t f = 0; f < n_feat; f++) own[f] += SQUARE((double)x[r * n_feat + f] * inverse[f]);
    }
    for (int64_t f = 0; f < n_feat; f++) out[f] = (double)n_rows;
    for (int64_t t = 0; t < n_threads; t++) for (int64_t f = 0; f < n_feat; f++) out[f] += workspace[t * n_feat + f];
    return SAR_OK;
}

/* The value in column f of a row of sar_exact_centred's matrix v. */
SAR_INLINE double NAME(centred)(const T *restrict x, const double *restrict centre, const double *restrict scale, const T *restrict y,
                                int64_t f)
{
    const double u = ((double)x[f] - centre[f]) * scale[f];
    return u * (y ? (double)y[f] : u);
}

/* A reduction of the columns of v[r,f] = u y[r,f], or u u if y is NULL, for u = (x[r,f] - centre[f]) scale[f]; v is double and is not
 * stored: SAR_LARGEST as sar_exact_largest, SAR_SQUARES as sar_exact_squares, SAR_SUM on the two grids `by`
 *
 * inputs   x, y (n_rows, n_feat), centre, scale (n_feat); by: inverse (n_feat) of SAR_SQUARES, (2, n_feat) of SAR_SUM
 * output   out (n_feat), of SAR_SUM (2, n_feat), overwritten; workspace (n_threads, 2, n_feat)
 * cost     O(n_rows * n_feat)
 */
int NAME(sar_exact_centred)(double *restrict out, double *restrict workspace, const T *restrict x, const double *restrict centre,
                            const double *restrict scale, const T *restrict y, const double *restrict by, int reduction,
                            int64_t n_threads, int64_t n_rows, int64_t n_feat)
{
    const int64_t n_out = reduction == SAR_SUM ? 2 * n_feat : n_feat;
    memset(workspace, 0, (size_t)(n_threads * 2 * n_feat) * sizeof(double));
#pragma omp parallel num_threads((int)n_threads)
    {
        double *restrict own = workspace + sar_team_rank() * 2 * n_feat;
        int64_t end = sar_split(n_rows, sar_team_rank() + 1, sar_team_size());
        for (int64_t r = sar_split(n_rows, sar_team_rank(), sar_team_size()); r < end; r++) {
            const T *restrict x_r = x + r * n_feat, *restrict y_r = y ? y + r * n_feat : NULL;
            if (reduction == SAR_LARGEST)
                for (int64_t f = 0; f < n_feat; f++) own[f] = LARGER(own[f], NAME(centred)(x_r, centre, scale, y_r, f));
            else if (reduction == SAR_SQUARES)
                for (int64_t f = 0; f < n_feat; f++) own[f] += SQUARE(NAME(centred)(x_r, centre, scale, y_r, f) * by[f]);
            else
                for (int64_t f = 0; f < n_feat; f++) {
                    const double v = NAME(centred)(x_r, centre, scale, y_r, f), q = (v + by[f]) - by[f], low = by[n_feat + f];
                    own[f] += q;
                    own[n_feat + f] += (v - q + low) - low;
                }
        }
    }
    for (int64_t f = 0; f < n_out; f++) out[f] = reduction == SAR_SQUARES ? (double)n_rows : 0;
    for (int64_t t = 0; t < n_threads; t++)
        for (int64_t f = 0; f < n_out; f++) {
            const double part = workspace[t * 2 * n_feat + f];
            out[f] = reduction == SAR_LARGEST ? LARGER(out[f], part) : out[f] + part;
        }
    return SAR_OK;
}

#if LEVELS == 1
/* A tile: sum[p][q] += a[r][p] g[r][q] over `depth` rows; rows of sum are ld apart. Products are no ties, so they are added in one
 * rounding, fused or not. */
FUSED static void NAME(exact_tile)(double *restrict sum, int64_t ld, const double *restrict a, const double *restrict g, int64_t depth)
{
    exact_reg s[EXACT_ROWS][2];
    for (int p = 0; p < EXACT_ROWS; p++)
        for (int v = 0; v < 2; v++) s[p][v] = *(const exact_reg *)(sum + p * ld + v * EXACT_WIDE);
    for (int64_t r = 0; r < depth; r++, a += EXACT_ROWS, g += EXACT_COLUMNS) {
        const exact_reg g_r[2] = {*(const exact_reg *)g, *(const exact_reg *)(g + EXACT_WIDE)};
        for (int p = 0; p < EXACT_ROWS; p++)
            for (int v = 0; v < 2; v++) s[p][v] += a[p] * g_r[v];
    }
    for (int p = 0; p < EXACT_ROWS; p++)
        for (int v = 0; v < 2; v++) *(exact_reg *)(sum + p * ld + v * EXACT_WIDE) = s[p][v];
}
#else
/* A tile of two levels: sum[p][q] += grid(a[r][p] g[r][q]) over `depth` rows, m[p][q] the first grid's; what it leaves is
 * added to fine[p][q] on the grid of `step` times that. Rows of sum, fine and m are ld apart. */
static void NAME(exact_fine_tile)(double *restrict sum, double *restrict fine, const double *restrict m, int64_t ld, double step,
                                  const double *restrict a, const double *restrict g, int64_t depth)
{
    exact_reg s[EXACT_FINE][2], t[EXACT_FINE][2], from[EXACT_FINE][2];
    for (int p = 0; p < EXACT_FINE; p++)
        for (int v = 0; v < 2; v++) {
            s[p][v] = *(const exact_reg *)(sum + p * ld + v * EXACT_WIDE);
            t[p][v] = *(const exact_reg *)(fine + p * ld + v * EXACT_WIDE);
            from[p][v] = *(const exact_reg *)(m + p * ld + v * EXACT_WIDE);
        }
    for (int64_t r = 0; r < depth; r++, a += EXACT_FINE, g += EXACT_COLUMNS) {
        const exact_reg g_r[2] = {*(const exact_reg *)g, *(const exact_reg *)(g + EXACT_WIDE)};
        for (int p = 0; p < EXACT_FINE; p++)
            for (int v = 0; v < 2; v++) {
                const exact_reg product = a[p] * g_r[v], q = (product + from[p][v]) - from[p][v], low = from[p][v] * step;
                s[p][v] += q;
                t[p][v] += (product - q + low) - low;
            }
    }
    for (int p = 0; p < EXACT_FINE; p++)
        for (int v = 0; v < 2; v++) {
            *(exact_reg *)(sum + p * ld + v * EXACT_WIDE) = s[p][v];
            *(exact_reg *)(fine + p * ld + v * EXACT_WIDE) = t[p][v];
        }
}
#endif

/* packed[tile][r][i] = times * x[r * ld + tile * width + i] as double, r < depth; 0 beyond n columns. */
SAR_INLINE void NAME(exact_pack)(double *restrict packed, const T *restrict x, int64_t ld, int64_t depth, int64_t n, const int width,
                                 double times)
{
    for (int64_t first = 0; first < n; first += width)
        for (int64_t r = 0; r < depth; r++, packed += width) {
            const T *restrict from = x + r * ld + first;
            if (first + width <= n) for (int i = 0; i < width; i++) packed[i] = (double)from[i] * times;
            else for (int i = 0; i < width; i++) packed[i] = first + i < n ? (double)from[i] * times : 0;
        }
}

/* sum[level,p,q] = sum_r grid(a[r,p] g[r,q]), m = of_a[p] of_g[q], of the second level `step` times that
 *
 * Of float a product is exact and at most 48 bits wide. Times 1 + 2^-52, which is beneath all grids, it is no tie, so it
 * is added to m's own sum in one rounding, the same in any order, and the same whether the addition is fused or not.
 *
 * inputs   a (k, m), g (k, n), of_a (m), of_g (n)
 * output   sum (LEVELS, m, n), overwritten; workspace (n_threads, (LEVELS + 1) M N + SAR_EXACT_DEPTH (M + N)), M and N
 *          being SAR_EXACT_PAD more than m and n
 * cost     O(k m n)
 */
int NAME(sar_exact_gemm_backward)(double *restrict sum, double *restrict workspace, const T *restrict a, const T *restrict g,
                                  const double *restrict of_a, const double *restrict of_g, double step, int64_t n_threads, int64_t m,
                                  int64_t n, int64_t k)
{
    const int tile = LEVELS == 1 ? EXACT_ROWS : EXACT_FINE;
    const int64_t n_rows = (m + tile - 1) / tile * tile, n_columns = (n + EXACT_COLUMNS - 1) / EXACT_COLUMNS * EXACT_COLUMNS;
    const int64_t n_sums = n_rows * n_columns, share = (LEVELS + 1) * n_sums + SAR_EXACT_DEPTH * (n_rows + n_columns);
    int n_parts = 1;
#pragma omp parallel num_threads((int)n_threads)
    {
        double *grid = workspace + sar_team_rank() * share, *own = grid + n_sums;
        double *a_pack = own + LEVELS * n_sums, *g_pack = a_pack + SAR_EXACT_DEPTH * n_rows;
        int64_t end = sar_split(k, sar_team_rank() + 1, sar_team_size());
        for (int64_t p = 0; p < n_rows; p++)
            for (int64_t q = 0; q < n_columns; q++) grid[p * n_columns + q] = p < m && q < n ? of_a[p] * of_g[q] : 1;
        if (LEVELS == 1) memcpy(own, grid, (size_t)n_sums * sizeof(double));
        else memset(own, 0, (size_t)(LEVELS * n_sums) * sizeof(double));
        for (int64_t r = sar_split(k, sar_team_rank(), sar_team_size()); r < end; r += SAR_EXACT_DEPTH) {
            int64_t depth = end - r < SAR_EXACT_DEPTH ? end - r : SAR_EXACT_DEPTH;
            NAME(exact_pack)(a_pack, a + r * m, m, depth, m, tile, LEVELS == 1 ? 1 + 0x1p-52 : 1);
            NAME(exact_pack)(g_pack, g + r * n, n, depth, n, EXACT_COLUMNS, 1);
            for (int64_t p = 0; p < n_rows; p += tile)
                for (int64_t q = 0; q < n_columns; q += EXACT_COLUMNS) {
                    const int64_t at = p * n_columns + q;
#if LEVELS == 1
                    NAME(exact_tile)(own + at, n_columns, a_pack + p * depth, g_pack + q * depth, depth);
#else
                    NAME(exact_fine_tile)(own + at, own + n_sums + at, grid + at, n_columns, step, a_pack + p * depth,
                                          g_pack + q * depth, depth);
#endif
                }
        }
#pragma omp single
        n_parts = sar_team_size();
    }
    (void)step;
    memset(sum, 0, (size_t)(LEVELS * m * n) * sizeof(double));
    for (int64_t t = 0; t < n_parts; t++)
        for (int level = 0; level < LEVELS; level++)
            for (int64_t p = 0; p < m; p++)
                for (int64_t q = 0; q < n; q++) {
                    const double *grid = workspace + t * share + p * n_columns + q;
                    sum[(level * m + p) * n + q] += grid[(level + 1) * n_sums] - (LEVELS == 1 ? *grid : 0);
                }
    return SAR_OK;
}

/* out = scale * (sum over the levels of `sums`), rounded to T
 *
 * inputs   sums (n_rows, LEVELS, n_heads, n_feat), scale (n_rows, n_heads) or NULL: 1
 * output   out (n_rows, n_heads, n_feat), overwritten
 * cost     O(n_rows * n_heads * n_feat)
 */
int NAME(sar_exact_whole)(T *restrict out, const double *restrict sums, const double *restrict scale, int64_t n_rows,
                          int64_t n_heads, int64_t n_feat)
{
    const int64_t stride = n_heads * n_feat;
    int team = sar_team(n_rows * stride);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t h = 0; h < n_heads; h++)
            NAME(round_row)(out + r * stride + h * n_feat, sums + r * LEVELS * stride + h * n_feat, stride,
                            scale ? scale[r * n_heads + h] : 1, 0, n_feat);
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
