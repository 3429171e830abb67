/* Sums and dot products over gathered rows: the inner loops of spmm.c and attend.c. A template: T, S, I, LANES and
 * NAME are set. Rows are of S: of T itself, or with BFLOAT16 of bfloat16, the upper half of a T, which a shift makes a T
 * in registers; so sums have the bits that they have over rows of T with these values.
 *
 * Sums run over at most CHUNK edges before they are added to memory, and rows of more than GROUP edges are summed in
 * groups: rounding grows with CHUNK + 64 + n / GROUP, not with n. A sum of one column is the same whatever the vectors
 * are. A dot product's order is fixed by vectors of 64 bytes, LANES values, which narrower registers hold in several: so
 * every instruction set adds in the same order, and all give the same bits.
 *
 * The columns of a row are covered by vectors, of which the last ends there and may overlap the one before. So every
 * width runs whole vectors only. Vectors are said, not left to the compiler to find, and are no wider than a
 * register: what is wider stands in memory. */
#ifndef CHUNK
#define CHUNK 256
#define GROUP (64 * CHUNK)  /* edges of a longer row are summed in groups of so many, which are added up after */
#define GROUP_VALUES 4096   /* of a row that has groups, at most */
#define GROUP_HEADS 256
#define HAS_GROUPS(n_heads, n_feat) ((n_heads) <= GROUP_HEADS && (n_heads) * (n_feat) <= GROUP_VALUES)
#define VECTORS 8           /* of 64 bytes, of one pass of dot products over the edges */
#ifndef SAR_REGISTER
#define SAR_REGISTER 16     /* bytes of a register; build.py says it for each instruction set */
#endif
#define SUMS_BESIDE_DOTS 8  /* registers of sums, beside dot products and the row */
/* How many edges on a row is prefetched: of short rows more, so that as many bytes are under way. Measured from 128
 * bytes to 3 KiB. */
#define AHEAD(row_bytes, n_pass) ((row_bytes) <= 340 ? 48 : (row_bytes) <= 512 && (n_pass) == 1 ? 32 : 16)
#endif
#define WIDE ((int)(SAR_REGISTER / sizeof(T)))      /* values of a register */
#define PIECES (64 / SAR_REGISTER)                  /* registers of LANES values */

/* FEW: an instance that few runs call has few passes: each pass is unrolled, and compiling the passes is most of a build.
 * Few runs have int64 indices, for parts of 2^31 nodes or edges, or use portable kernels where there are others.
 * SUMS: registers for the sums of one pass over the edges. There are 16, or 32 of 64 bytes; the coefficient and the
 * product need some. */
#undef FEW
#undef SUMS
#if INDEX_BITS == 64 || defined(SAR_FALLBACK)
#define FEW 1
#define SUMS 4
#else
#define FEW 0
#define SUMS (SAR_REGISTER == 64 ? 8 : 13)
#endif

/* Vector types for values at any address: unaligned loads and stores. */
typedef T NAME(reg) __attribute__((vector_size(SAR_REGISTER), aligned(sizeof(T)), may_alias));
#define REG(address) (*(const NAME(reg) *)(address))

/* ROW: a register of values of a row. WIDEN: one value. */
#ifdef BFLOAT16
typedef S NAME(half) __attribute__((vector_size(SAR_REGISTER / 2), aligned(sizeof(S)), may_alias));
typedef uint32_t NAME(bits) __attribute__((vector_size(SAR_REGISTER)));
#if defined(__clang__) || SAR_REGISTER == 16
#define BITS(half) __builtin_convertvector(half, NAME(bits))
#elif SAR_REGISTER == 32                /* of one conversion GCC 12 makes two */
typedef short NAME(shorts) __attribute__((vector_size(16)));
#define BITS(half) __builtin_ia32_pmovzxwd256((NAME(shorts))(half))
#elif defined(SAR_AVX512_AS_AVX2)
#define BITS(half) __builtin_convertvector(half, NAME(bits))
#else
typedef short NAME(shorts) __attribute__((vector_size(32)));
typedef int NAME(words) __attribute__((vector_size(64)));
#define BITS(half) __builtin_ia32_pmovzxwd512_mask((NAME(shorts))(half), (NAME(words)){0}, (unsigned short)0xffff)
#endif
#define ROW(address) ((NAME(reg))((NAME(bits))BITS(*(const NAME(half) *)(address)) << 16))
#define WIDEN(value) NAME(widen)(value)
SAR_INLINE T NAME(widen)(S value)
{
    const uint32_t bits = (uint32_t)value << 16;
    T wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}
#else
#define ROW(address) REG(address)
#define WIDEN(value) (value)
#endif

/* What is summed: for each of n <= CHUNK edges of one row, `coef` (NULL: 1) times the row index[k] of x, which has
 * `stride` values. `index` goes on to n_ahead >= n, so that rows of later edges can be prefetched: `prefetch` bytes
 * of each, 0: they are in the cache already, -1: the columns that are read. `near`: x fits the last-level cache,
 * from where the second-level one is no gain. */
typedef struct {
    const S *restrict x;
    const I *restrict index;
    const T *restrict coef;
    int64_t stride, n_ahead, prefetch;
    int n, near;
} NAME(gather);

/* The member `near` for an array of n_rows rows of n_values values each. */
SAR_INLINE int NAME(is_near)(int64_t n_rows, int64_t n_values)
{
    return n_rows * n_values * (int64_t)sizeof(S) <= sar_last_cache() / 4 * 3;
}

/* Prefetching in one pass: of the row `ahead` edges on, for the first n edges, so many bytes from x on. */
typedef struct {
    int ahead, n, near;
    int64_t bytes;
} NAME(ahead);

/* For one of n_pass passes, of the `width` columns from column f on. Rows that do not start at a cache line reach
 * into one more. */
SAR_INLINE NAME(ahead) NAME(plan_ahead)(const NAME(gather) *g, int64_t f, int64_t width, int n_pass)
{
    const int64_t bytes = g->prefetch < 0 ? width * (int64_t)sizeof(S) : f == 0 ? g->prefetch : 0;
    NAME(ahead) plan = {AHEAD(g->stride * (int64_t)sizeof(S), n_pass), 0, g->near, bytes};
    int aligned = (((uintptr_t)(g->x + f) | (uintptr_t)g->stride * sizeof(S)) & 63) == 0;
    if (plan.bytes == 0 || g->n_ahead <= plan.ahead) return plan;
    plan.n = g->n_ahead - plan.ahead < g->n ? (int)(g->n_ahead - plan.ahead) : g->n;
    if (!aligned) plan.bytes += 63;
    return plan;
}

/* Prefetch a later row as planned. Mostly that is `lines` cache lines, a constant, so that the loop is unrolled. */
SAR_INLINE void NAME(prefetch_row)(const int lines, const S *row, NAME(ahead) plan)
{
    if (plan.near) {
        for (int64_t b = 0; b < plan.bytes; b += 64) SAR_PREFETCH_NEAR((const char *)row + b);
    } else if (plan.bytes == lines * 64) {
#pragma GCC unroll 16
        for (int v = 0; v < lines; v++) SAR_PREFETCH((const char *)row + v * 64);
    } else
        for (int64_t b = 0; b < plan.bytes; b += 64) SAR_PREFETCH((const char *)row + b);
}

/* The end of a pass: the values of the columns first .. last + WIDE from the register that starts at column `last`
 * <= first. */
SAR_INLINE void NAME(add_end)(T *restrict out, NAME(reg) sum, int64_t first, int64_t last, T scale, int begins)
{
    T value[WIDE];
    if (first == last) {
        NAME(reg) *to = (NAME(reg) *)(out + last);
        *to = begins ? scale * sum : *to + scale * sum;
        return;
    }
    memcpy(value, &sum, sizeof value);
    for (int64_t f = first; f < last + WIDE; f++)
        out[f] = begins ? scale * value[f - last] : out[f] + scale * value[f - last];
}

/* Over n_reg registers, of which the last starts at column `last` (all others one after another) of the columns from
 * f on:
 *   out[f] += scale * sum_k coef[k] * row_k[f], begins: =
 * n_reg and weighted are constants where this is inlined. */
SAR_INLINE void NAME(sum_pass)(const int n_reg, const int weighted, T *restrict out, const NAME(gather) *g, int64_t f, int64_t width,
                               int n_pass, T scale, int begins)
{
    const S *restrict x = g->x + f;
    const T *restrict coef = g->coef;
    const I *restrict index = g->index;
    const int64_t stride = g->stride, last = width - WIDE;
    const int whole = n_reg - 1, n = g->n;
    const NAME(ahead) next = NAME(plan_ahead)(g, f, width, n_pass);
    NAME(reg) sum[SUMS];
#pragma GCC unroll 16
    for (int v = 0; v < n_reg; v++) sum[v] = (NAME(reg)){0};
    for (int k = 0; k < n; k++) {
        const S *row = x + (int64_t)index[k] * stride;
        if (k < next.n) NAME(prefetch_row)((n_reg * WIDE * (int)sizeof(S) + 63) / 64, x + (int64_t)index[k + next.ahead] * stride, next);
        if (weighted) {
#pragma GCC unroll 16
            for (int v = 0; v < whole; v++) sum[v] += coef[k] * ROW(row + v * WIDE);
            sum[whole] += coef[k] * ROW(row + last);
        } else {
#pragma GCC unroll 16
            for (int v = 0; v < whole; v++) sum[v] += ROW(row + v * WIDE);
            sum[whole] += ROW(row + last);
        }
    }
    out += f;
#pragma GCC unroll 16
    for (int v = 0; v < whole; v++) {
        NAME(reg) *to = (NAME(reg) *)(out + v * WIDE);
        *to = begins ? scale * sum[v] : *to + scale * sum[v];
    }
    NAME(add_end)(out, sum[whole], whole * WIDE, last, scale, begins);
}

/* The same for a row narrower than a register: two pieces of `lanes` values, a power of two, where the second piece ends
 * with the row and may overlap the first. */
SAR_INLINE void NAME(narrow_sum)(const int lanes, T *restrict out, const NAME(gather) *g, int64_t width, T scale, int begins)
{
    const int64_t last = width - lanes;
    const NAME(ahead) next = NAME(plan_ahead)(g, 0, width, 1);
    T sum[2 * WIDE] = {0};
    for (int k = 0; k < g->n; k++) {
        const S *row = g->x + (int64_t)g->index[k] * g->stride;
        if (k < next.n) NAME(prefetch_row)(1, g->x + (int64_t)g->index[k + next.ahead] * g->stride, next);
        if (g->coef) {
            for (int u = 0; u < lanes; u++) sum[u] += g->coef[k] * WIDEN(row[u]);
            for (int u = 0; u < lanes; u++) sum[lanes + u] += g->coef[k] * WIDEN(row[last + u]);
        } else {
            for (int u = 0; u < lanes; u++) sum[u] += WIDEN(row[u]);
            for (int u = 0; u < lanes; u++) sum[lanes + u] += WIDEN(row[last + u]);
        }
    }
    for (int f = 0; f < (int)width; f++) {
        T value = f < lanes ? sum[f] : sum[lanes + f - (int)last];
        out[f] = begins ? scale * value : out[f] + scale * value;
    }
}

/* out[f] += scale * sum_k coef[k] * x[index[k]*stride + f],   f < end; begins: = */
SAR_INLINE void NAME(gather_sum)(T *restrict out, const NAME(gather) *g, int64_t end, T scale, int begins)
{
#define PASS(n_reg) case n_reg: PASS_(n_reg) break;
#define PASS_(n_reg) \
    if (g->coef) NAME(sum_pass)(n_reg, 1, out, g, f, width, n_pass, scale, begins); \
    else NAME(sum_pass)(n_reg, 0, out, g, f, width, n_pass, scale, begins);
    if (end < WIDE) {
        if (WIDE > 8 && end > 8) NAME(narrow_sum)(8, out, g, end, scale, begins);
        else if (WIDE > 4 && end > 4) NAME(narrow_sum)(4, out, g, end, scale, begins);
        else if (end > 2) NAME(narrow_sum)(2, out, g, end, scale, begins);
        else if (end > 0) NAME(narrow_sum)(1, out, g, end, scale, begins);
        return;
    }
    int64_t n_reg = (end + WIDE - 1) / WIDE, most = SUMS / PIECES * PIECES;
    int n_pass = n_reg <= SUMS ? 1 : (int)((n_reg + most - 1) / most);
    int64_t each = n_pass == 1 ? end : (n_reg + n_pass * PIECES - 1) / (n_pass * PIECES) * LANES;
    for (int64_t f = 0; f < end; f += each) {
        int64_t width = end - f < each ? end - f : each;
        switch ((width + WIDE - 1) / WIDE) {
        PASS(1) PASS(2) PASS(3)
#if SUMS > 4
        PASS(4) PASS(5) PASS(6) PASS(7)
#endif
#if SUMS > 8
        PASS(8) PASS(9) PASS(10) PASS(11) PASS(12)
#endif
        default: PASS_(SUMS)
        }
    }
#undef PASS
#undef PASS_
}

typedef T NAME(quarter) __attribute__((vector_size(16)));

/* The sum of LANES values: the two halves are added, again and again. */
SAR_INLINE T NAME(sum_of)(const NAME(reg) t[PIECES])
{
#if SAR_REGISTER == 16
    const NAME(quarter) quarter = (t[0] + t[2]) + (t[1] + t[3]);
#else
    NAME(quarter) q[2];
#if SAR_REGISTER == 32
    const NAME(reg) half = t[0] + t[1];
#else
    typedef T half_register __attribute__((vector_size(32)));
    half_register halves[2], half;
    memcpy(halves, t, sizeof halves);
    half = halves[0] + halves[1];
#endif
    memcpy(q, &half, sizeof q);
    const NAME(quarter) quarter = q[0] + q[1];
#endif
#if LANES == 16
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
#else
    return quarter[0] + quarter[1];
#endif
}

/* Over n_vec vectors of LANES values, of which the last ends the `width` columns from f on:
 *   dot[k] += sum_f a[f] * row_k[f];   if `summing`, out[f] += sum_k coef[k] * row_k[f] too (begins: =), a row being
 *   read once for both
 * a is 0 where the last vector overlaps. Where this is inlined n_vec, but for FEW, and summing are constants. */
SAR_INLINE void NAME(dot_pass)(const int n_vec, const int summing, T *restrict dot, T *restrict out, const T *restrict a,
                               const NAME(gather) *g, int64_t f, int64_t width, int begins)
{
    const S *restrict x = g->x + f;
    const T *restrict coef = g->coef;
    const I *restrict index = g->index;
    const int64_t stride = g->stride, last = width - LANES;
    const int whole = n_vec - 1, n = g->n, lines = FEW ? 0 : (n_vec * LANES * (int)sizeof(S) + 63) / 64;
    const NAME(ahead) next = NAME(plan_ahead)(g, f, width, 1);
    NAME(reg) sum[VECTORS * PIECES];
#pragma GCC unroll 32
    for (int v = 0; v < n_vec * PIECES; v++) sum[v] = (NAME(reg)){0};
    for (int k = 0; k < n; k++) {
        const S *row = x + (int64_t)index[k] * stride;
        if (k < next.n) NAME(prefetch_row)(lines, x + (int64_t)index[k + next.ahead] * stride, next);
        NAME(reg) t[PIECES];
#pragma GCC unroll 4
        for (int p = 0; p < PIECES; p++) {
            const NAME(reg) r = ROW(row + last + p * WIDE);
            t[p] = REG(a + whole * LANES + p * WIDE) * r;
            if (summing) sum[whole * PIECES + p] += coef[k] * r;
        }
#if !FEW
#pragma GCC unroll 8
#endif
        for (int v = 0; v < whole; v++)
#pragma GCC unroll 4
            for (int p = 0; p < PIECES; p++) {
                const NAME(reg) r = ROW(row + v * LANES + p * WIDE);
                t[p] += REG(a + v * LANES + p * WIDE) * r;
                if (summing) sum[v * PIECES + p] += coef[k] * r;
            }
        dot[k] += NAME(sum_of)(t);
    }
    if (!summing) return;
    out += f;
#pragma GCC unroll 32
    for (int v = 0; v < whole * PIECES; v++) {
        NAME(reg) *to = (NAME(reg) *)(out + v * WIDE);
        if (begins) *to = sum[v];
        else *to += sum[v];
    }
#pragma GCC unroll 4
    for (int p = 0; p < PIECES; p++) {
        int64_t from = last + p * WIDE, first = from < whole * LANES ? whole * LANES : from;
        if (first < from + WIDE) NAME(add_end)(out, sum[whole * PIECES + p], first, from, 1, begins);
    }
}

/* The same for a row of fewer than LANES values: two pieces of `lanes` values, a power of two; the second ends the
 * row. */
SAR_INLINE void NAME(narrow_dot)(const int lanes, const int summing, T *restrict dot, T *restrict out, const T *restrict a,
                                 const NAME(gather) *g, int64_t width, int begins)
{
    const int64_t last = width - lanes;
    const NAME(ahead) next = NAME(plan_ahead)(g, 0, width, 1);
    T sum[LANES] = {0};
    for (int k = 0; k < g->n; k++) {
        const S *row = g->x + (int64_t)g->index[k] * g->stride;
        if (k < next.n) NAME(prefetch_row)(1, g->x + (int64_t)g->index[k + next.ahead] * g->stride, next);
        T t[LANES / 2];
        if (summing) {
            for (int u = 0; u < lanes; u++) sum[u] += g->coef[k] * WIDEN(row[u]);
            for (int u = 0; u < lanes; u++) sum[lanes + u] += g->coef[k] * WIDEN(row[last + u]);
        }
        for (int u = 0; u < lanes; u++) t[u] = a[u] * WIDEN(row[u]) + a[lanes + u] * WIDEN(row[last + u]);
        for (int half = lanes / 2; half; half /= 2) for (int u = 0; u < half; u++) t[u] += t[u + half];
        dot[k] += t[0];
    }
    for (int f = 0; summing && f < (int)width; f++) out[f] = (begins ? 0 : out[f]) + (f < lanes ? sum[f] : sum[lanes + f - (int)last]);
}

/* Copy `width` values of a to `padded` as the pass reads them: zeros where the last of its pieces overlaps the one
 * before. */
SAR_INLINE void NAME(pad_row)(T *restrict padded, const S *restrict a, int64_t lanes, int64_t width)
{
    int64_t whole = (width - 1) / lanes * lanes;
#ifdef BFLOAT16
    if (lanes == LANES) {   /* stored as the pass loads them: a vector waits for values that were stored one by one */
        if (width % LANES == 0) whole = width;
        for (int64_t f = 0; f < whole; f += WIDE) *(NAME(reg) *)(padded + f) = ROW(a + f);
        if (whole == width) return;
    } else
#endif
    for (int64_t f = 0; f < whole; f += lanes)
        for (int64_t u = 0; u < lanes; u++) padded[f + u] = WIDEN(a[f + u]);    /* no memcpy: short */
    for (int64_t u = 0; u < lanes; u++) padded[whole + u] = width - lanes + u < whole ? 0 : WIDEN(a[width - lanes + u]);
}

/* Compute the dot products that are NaN again without padding, where 0 times infinity may have made an infinite result
 * NaN. */
static __attribute__((noinline)) void NAME(unpadded_dots)(T *restrict dot, const S *restrict a, const NAME(gather) *g, int64_t end)
{
    for (int k = 0; k < g->n; k++) {
        const S *row = g->x + (int64_t)g->index[k] * g->stride;
        if (dot[k] == dot[k]) continue;
        dot[k] = 0;
        for (int64_t f = 0; f < end; f++) dot[k] += WIDEN(a[f]) * WIDEN(row[f]);
    }
}

/* dot[k] = sum_f a[f] * x[index[k]*stride + f],   f < end; if `summing`, out[f] += sum_k coef[k] * x[index[k]*stride
 * + f] too; begins: = */
SAR_INLINE void NAME(gather_dot)(const int summing, T *restrict dot, T *restrict out, const S *restrict a, const NAME(gather) *g,
                                 int64_t end, int begins)
{
#define PASS(n_vec) case n_vec: \
    if (beside && n_vec * PIECES <= SUMS_BESIDE_DOTS) NAME(dot_pass)(n_vec, 1, dot, out, values, g, f, width, begins); \
    else NAME(dot_pass)(n_vec, 0, dot, NULL, values, g, f, width, 0); \
    break;
#define NARROW(lanes) do { \
        NAME(pad_row)(padded, a, lanes, end); \
        NAME(narrow_dot)(lanes, summing, dot, out, padded, g, end, begins); \
    } while (0)
    T padded[VECTORS * LANES];
    padded[1] = 0;      /* the second piece of a row of one column */
    for (int k = 0; k < g->n; k++) dot[k] = 0;
    if (end < LANES) {
        if (LANES > 8 && end > 8) NARROW(8);
        else if (end > 4) NARROW(4);
        else if (end > 2) NARROW(2);
        else if (end > 0) NARROW(1);
    }
    const int beside = summing && !FEW && (end <= SUMS_BESIDE_DOTS * WIDE || SUMS_BESIDE_DOTS >= VECTORS * PIECES);
    for (int64_t f = 0; f < end && end >= LANES; f += VECTORS * LANES) {
        int64_t width = end - f < VECTORS * LANES ? end - f : VECTORS * LANES;
        const T *values = padded;
#ifndef BFLOAT16
        if (width % LANES == 0) values = a + f;     /* where they are: what was just stored by values a vector's load waits for */
#endif
        if (values == padded) NAME(pad_row)(padded, a + f, LANES, width);
        const int n_vec = (int)((width + LANES - 1) / LANES);
        if (FEW) NAME(dot_pass)(n_vec, 0, dot, NULL, values, g, f, width, 0);
        else switch (n_vec) { PASS(1) PASS(2) PASS(3) PASS(4) PASS(5) PASS(6) PASS(7) PASS(8) }
    }
    int n_nan = 0;
    for (int k = 0; k < g->n; k++) n_nan += dot[k] != dot[k];
    if (n_nan) NAME(unpadded_dots)(dot, a, g, end);
    if (summing && !beside && end >= LANES) {
        NAME(gather) near = *g;
        near.prefetch = 0;
        NAME(gather_sum)(out, &near, end, 1, begins);
    }
#undef PASS
#undef NARROW
}

#undef REG
#undef ROW
#undef BITS
#undef WIDEN
