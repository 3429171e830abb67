/* Dense products. A tile of the output stays in registers, a panel of b in the first cache, a block of a in the
 * second (Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008).
 *
 * A value is a sum of sums of at most DEPTH products, all in ascending order; each product is added in one rounding
 * where the instruction set can, with `fused` everywhere. So a row of a product depends neither on the other rows nor on
 * threads, and with `fused` not on the instruction set. */
#ifndef T
#include "sarlite.h"
#define KERNEL "gemm.c"
#ifdef __clang__
#define FUSED
#pragma clang fp contract(fast)
#else
#define FUSED __attribute__((optimize("fp-contract=fast")))
#endif
#if SAR_REGISTER == 64
#define TILE_ROWS 14            /* of two registers each: 28 of 32 */
#else
#define TILE_ROWS 6             /* 12 of 16 */
#endif
#define DEPTH SAR_GEMM_DEPTH
/* Set if the instruction set adds a product in one rounding and the compiler uses that: GCC does from -O2 on, and sanitizers run at -O1. */
#ifdef __SANITIZE_ADDRESS__
#define FUSES 0
#else
#define FUSES (SAR_REGISTER > 16)
#endif
#define NEXT 8                  /* a tile prefetches a row of the next panel for so many of its own: NEXT tiles all */
#define BLOCK SAR_GEMM_BLOCK    /* rows of a: whole tiles */
#include "each_float.h"
#else
#define WIDE ((int)(SAR_REGISTER / sizeof(T)))      /* values of a register */
#define PANEL (2 * WIDE)                            /* columns of a tile */
#define MINOR(a, b) ((a) < (b) ? (a) : (b))

typedef T NAME(reg) __attribute__((vector_size(SAR_REGISTER), aligned(sizeof(T)), may_alias));
#define REG(address) (*(const NAME(reg) *)(address))

/* a b + c, rounded once; a call of the C library if the instruction set has no such instruction. */
SAR_INLINE T NAME(fused)(T a, T b, T c)
{
    return FLOAT_BITS == 32 ? (T)__builtin_fmaf((float)a, (float)b, (float)c) : (T)__builtin_fma(a, b, c);
}

/* One tile of out, n_rows by n_columns: sums over p < depth of a[r * row + p * step] panel[p][j], n_reg registers of
 * j, added to out if `adds`. Three rows share a pointer, as an address can have 0, 1 or 2 times `row`. With `ahead`
 * as many rows of a, so many values on, are prefetched; with `next` a row of a panel from there, `ld_next` apart,
 * for each of NEXT values of p. */
FUSED SAR_INLINE void NAME(tile)(const int n_rows, const int n_reg, T *restrict out, int64_t ld_out, int n_columns, int adds,
                                 const T *restrict a, int64_t row, int64_t step, const T *restrict panel, int64_t depth,
                                 int64_t ahead, const T *next, int64_t ld_next, int fused)
{
    NAME(reg) sum[TILE_ROWS][2];
    const T *three[(TILE_ROWS + 2) / 3];
    for (int r = 0; r < n_rows; r++)
        for (int v = 0; v < n_reg; v++) {
            sum[r][v] = (NAME(reg)){0};
            SAR_PREFETCH_OUT(out + r * ld_out + v * WIDE);
        }
    for (int g = 0; g < (n_rows + 2) / 3; g++) three[g] = a + 3 * g * row;
    for (int64_t p = 0; p < depth; p++, panel += n_reg * WIDE) {
        if (ahead && p % (64 / (int64_t)sizeof(T)) == 0)
            for (int r = 0; r < n_rows; r++) SAR_PREFETCH_NEAR(a + ahead + r * row + p);
        if (next && p % NEXT == 0) {
            SAR_PREFETCH(next + p / NEXT * ld_next);
            SAR_PREFETCH(next + p / NEXT * ld_next + WIDE);
        }
        const NAME(reg) b[2] = {REG(panel), REG(panel + (n_reg - 1) * WIDE)};
        for (int r = 0; r < n_rows; r++) {
            const T value = three[r / 3][r % 3 * row];
            for (int v = 0; v < n_reg; v++)
                if (FUSES || !fused) sum[r][v] += value * b[v];
                else for (int i = 0; i < WIDE; i++) sum[r][v][i] = NAME(fused)(value, b[v][i], sum[r][v][i]);
        }
        for (int g = 0; g < (n_rows + 2) / 3; g++) three[g] += step;
    }
    T part[TILE_ROWS * PANEL], *to = n_columns == n_reg * WIDE ? out : part;
    const int64_t ld = to == out ? ld_out : PANEL;
    for (int r = 0; r < n_rows && to == part; r++)
        for (int j = 0; j < n_reg * WIDE; j++) part[r * PANEL + j] = adds && j < n_columns ? out[r * ld_out + j] : 0;
#pragma GCC unroll 14
    for (int r = 0; r < n_rows; r++)
        for (int v = 0; v < n_reg; v++) {
            NAME(reg) *at = (NAME(reg) *)(to + r * ld + v * WIDE);
            if (adds) *at += sum[r][v];
            else *at = sum[r][v];
        }
    for (int r = 0; r < n_rows && to == part; r++)
        for (int j = 0; j < n_columns; j++) out[r * ld_out + j] = part[r * PANEL + j];
}

#define TILE(r) \
    for (; n_rows >= r; n_rows -= r, out += r * ld_out, a += r * row) { \
        const int64_t ahead = first && n_rows > r ? r * row : 0; \
        if (n_columns > WIDE) NAME(tile)(r, 2, out, ld_out, n_columns, adds, a, row, step, panel, depth, ahead, next, ld_next, fused); \
        else NAME(tile)(r, 1, out, ld_out, n_columns, adds, a, row, step, panel, depth, ahead, next, ld_next, fused); \
    }

/* All tiles of n_rows rows and n_columns <= PANEL columns. With `first` these rows of a are read for the first time, so
 * each tile prefetches the rows of the next tile. Each tile also prefetches a part of the panel `next`. */
FUSED static void NAME(tiles)(int64_t n_rows, T *restrict out, int64_t ld_out, int n_columns, int adds, const T *restrict a,
                              int64_t row, int64_t step, const T *restrict panel, int64_t depth, int first, const T *next,
                              int64_t ld_next, int fused)
{
    TILE(TILE_ROWS)
#if TILE_ROWS > 8
    TILE(8)
#endif
    TILE(4) TILE(2) TILE(1)
}
#undef TILE

/* The number of values in a row of a panel with n_columns columns. */
SAR_INLINE int NAME(panel_width)(int n_columns) { return n_columns > WIDE ? PANEL : WIDE; }

/* panel[p][j] = b[p * ld + j], or b[j * ld + p] if `trans`, j < n_columns; 0 beyond. */
static void NAME(pack_panel)(T *restrict panel, const T *restrict b, int64_t ld, int trans, int64_t depth, int n_columns)
{
    const int width = NAME(panel_width)(n_columns);
    for (int64_t p = 0; p < depth; p++, panel += width)
        if (n_columns == PANEL && !trans) {
            *(NAME(reg) *)panel = REG(b + p * ld);
            *(NAME(reg) *)(panel + WIDE) = REG(b + p * ld + WIDE);
        } else
            for (int j = 0; j < width; j++) panel[j] = j >= n_columns ? 0 : trans ? b[j * ld + p] : b[p * ld + j];
}

/* Pack n columns of a (depth, ld) for one tile after another: packed[p][i] holds the TILE_ROWS columns i of a tile; the
 * last tile may have fewer columns. */
static void NAME(pack_columns)(T *restrict packed, const T *restrict a, int64_t ld, int64_t depth, int64_t n)
{
    for (; n >= TILE_ROWS; n -= TILE_ROWS, a += TILE_ROWS)
        for (int64_t p = 0; p < depth; p++, packed += TILE_ROWS) memcpy(packed, a + p * ld, TILE_ROWS * sizeof(T));
    for (int64_t p = 0; n && p < depth; p++, packed += n) memcpy(packed, a + p * ld, (size_t)n * sizeof(T));
}

/* Copy n rows of k values: to[i] = a[rows[i]], where the rows of a are ld values apart. Later rows are prefetched. */
static void NAME(take_rows)(T *restrict to, const T *restrict a, int64_t ld, const int64_t *restrict rows, int64_t n, int64_t k)
{
    enum { AHEAD_ROWS = 8 };
    for (int64_t i = 0; i < n; i++) {
        for (int64_t p = 0; p < k && i + AHEAD_ROWS < n; p += 64 / (int64_t)sizeof(T)) SAR_PREFETCH(a + rows[i + AHEAD_ROWS] * ld + p);
        memcpy(to + i * k, a + rows[i] * ld, (size_t)k * sizeof(T));
    }
}

/* out = a @ b or a @ b^T, added to out if `accumulate`; with `rows`, row i of a stands at a[rows[i]]
 *
 * inputs   a (m, k), or (., k) with rows (m), within it, rows ld_a apart; b (k, n), with trans_b (n, k)
 * output   out (m, n), rows ld_out apart, overwritten or accumulated; workspace, at a cache line, (k * n rounded up
 *          to SAR_GEMM_COLUMNS): b's panels; with rows further (threads, SAR_GEMM_BLOCK, k), where each copies its
 *          block of a
 * cost     O(m n k); threads take blocks of rows of out as they come, since a thread that samples ahead may hold one
 *          of them up
 */
int NAME(sar_gemm_forward)(T *restrict out, int64_t ld_out, T *restrict workspace, const T *restrict a, int64_t ld_a,
                           const int64_t *restrict rows, const T *restrict b, int trans_b, int accumulate, int fused, int64_t m,
                           int64_t n, int64_t k)
{
    const int64_t n_columns = (n + SAR_GEMM_COLUMNS - 1) / SAR_GEMM_COLUMNS * SAR_GEMM_COLUMNS;
    int team = sar_team(m * n * k);
#pragma omp parallel num_threads(team)
    {
        T *taken = workspace + k * n_columns + sar_team_rank() * BLOCK * k;
#pragma omp for schedule(static)
        for (int64_t j = 0; j < n; j += PANEL)
            NAME(pack_panel)(workspace + j * k, b + (trans_b ? j * k : j), trans_b ? k : n, trans_b, k, (int)MINOR(n - j, PANEL));
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < m; first += BLOCK) {
            int64_t last = MINOR(first + BLOCK, m);
            const T *block = rows ? taken : a + first * ld_a;
            if (rows) NAME(take_rows)(taken, a, ld_a, rows + first, last - first, k);
            for (int64_t p = 0; p == 0 || p < k; p += DEPTH)
                for (int64_t j = 0; j < n; j += PANEL) {
                    int columns = (int)MINOR(n - j, PANEL);
                    const T *panel = workspace + j * k + p * NAME(panel_width)(columns);
                    NAME(tiles)(last - first, out + first * ld_out + j, ld_out, columns, accumulate || p > 0, block + p, rows ? k : ld_a, 1,
                                panel, MINOR(k - p, DEPTH), j == 0 && !rows, NULL, 0, fused);
                }
        }
    }
    return SAR_OK;
}

/* out = a^T @ g: the gradient of b in a @ b, where k, the number of rows, is large; with `rows`, row i of a stands
 * at a[rows[i]]
 *
 * inputs   a (k, m), or (., m) with rows (k), within it, rows ld_a apart; g (k, n), rows ld_g apart
 * output   out (m, n), overwritten; workspace, at a cache line, (n_threads, SAR_GEMM_OWN + 2 m n rounded up to
 *          SAR_GEMM_COLUMNS, with rows SAR_GEMM_DEPTH m more): each thread's panel, block, and the sums of its share
 *          of the rows, all and the last 64 DEPTH, which are added in thread order
 * cost     O(m n k). The wider of the two is taken by panels, so that few columns leave no registers empty. A panel
 *          is a piece of each row, which the processor's own prefetcher does not foresee, so the tiles of one
 *          prefetch the next.
 */
int NAME(sar_gemm_backward)(T *restrict out, T *restrict workspace, const T *restrict a, int64_t ld_a, const int64_t *restrict rows,
                            const T *restrict g, int64_t ld_g, int64_t n_threads, int64_t m, int64_t n, int64_t k)
{
    const int turned = m > n;
    const int64_t n_left = turned ? n : m, n_right = turned ? m : n, ld_taken = rows ? m : ld_a;
    const int64_t ld_left = turned ? ld_g : ld_taken, ld_right = turned ? ld_taken : ld_g;
    const int64_t n_own = (m * n + SAR_GEMM_COLUMNS - 1) / SAR_GEMM_COLUMNS * SAR_GEMM_COLUMNS;
    const int64_t share = SAR_GEMM_OWN + 2 * n_own + (rows ? DEPTH * m : 0);
#pragma omp parallel num_threads((int)n_threads)
    {
        T *panel = workspace + sar_team_rank() * share, *block = panel + DEPTH * SAR_GEMM_COLUMNS;
        T *total = workspace + sar_team_rank() * share + SAR_GEMM_OWN, *own = total + n_own, *taken = own + n_own;
        int64_t end = sar_split(k, sar_team_rank() + 1, sar_team_size()), first = sar_split(k, sar_team_rank(), sar_team_size());
        memset(total, 0, (size_t)(n_own + m * n) * sizeof(T));      /* both */
        for (int64_t r = first; r < end; r += DEPTH) {
            if (r > first && (r - first) % (64 * DEPTH) == 0)       /* own stays short: rounding grows with the sums' lengths */
                for (int64_t f = 0; f < m * n; f++) total[f] += own[f], own[f] = 0;
            int64_t depth = MINOR(end - r, DEPTH);
            const T *a_r = rows ? taken : a + r * ld_a, *left = turned ? g + r * ld_g : a_r, *right = turned ? a_r : g + r * ld_g;
            const T *following = r + 2 * DEPTH <= end && !(turned && rows) ? right + DEPTH * ld_right : NULL;    /* unless it is copied */
            if (rows) NAME(take_rows)(taken, a, ld_a, rows + r, depth, m);
            for (int64_t i = 0; i < n_left; i += BLOCK) {
                int64_t n_block = MINOR(n_left - i, BLOCK);
                NAME(pack_columns)(block, left + i, ld_left, depth, n_block);
                for (int64_t j = 0; j < n_right; j += PANEL) {
                    int columns = (int)MINOR(n_right - j, PANEL);
                    NAME(pack_panel)(panel, right + j, ld_right, 0, depth, columns);
                    const T *next = j + PANEL < n_right ? right + j + PANEL : i + BLOCK >= n_left ? following : NULL;
                    for (int64_t t = 0; t < n_block; t += TILE_ROWS) {
                        int64_t n_rows = MINOR(n_block - t, TILE_ROWS), at = t / TILE_ROWS * (DEPTH / NEXT);
                        NAME(tiles)(n_rows, own + (i + t) * n_right + j, n_right, columns, 1, block + t * depth, 1, n_rows, panel, depth,
                                    0, next && at < DEPTH && depth == DEPTH ? next + at * ld_right : NULL, ld_right, 0);
                    }
                }
            }
        }
        for (int64_t f = 0; f < m * n; f++) total[f] += own[f];
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                const T *at = workspace + SAR_GEMM_OWN + (turned ? j * m + i : i * n + j);
                T sum = *at;
                for (int64_t t = 1; t < sar_team_size(); t++) sum += at[t * share];
                out[i * n + j] = sum;
            }
    }
    return SAR_OK;
}
#undef WIDE
#undef PANEL
#undef MINOR
#undef REG
#endif
