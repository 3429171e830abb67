/* Sums and dot products over gathered rows: the inner loops of spmm.c and attend.c. A template: T, I, LANES and NAME are set.
 *
 * `index` points at the columns of n <= CHUNK edges of one row and goes on to n_ahead >= n, so that the x rows of later edges can be
 * prefetched. Sums run over at most CHUNK edges before they are added to memory: rounding grows with CHUNK + n / CHUNK, not with n.
 *
 * The `end` columns of a row are covered by vectors, of which the last ends there and may overlap the one before. So every
 * width runs whole vectors only, and every instruction set adds in the same order: all give the same bits. */
#ifndef CHUNK
#define CHUNK 256
/* How many edges on a row is prefetched: of short rows more, so that as many bytes are under way; measured from 128 bytes to 3 KiB. */
#define AHEAD(row_bytes) ((row_bytes) <= 340 ? 48 : (row_bytes) <= 512 ? 32 : 16)
#define VECTORS 8       /* of one pass over the edges: their sums stay in registers */
#endif

/* `bytes` of a row: mostly `n_vec` cache lines, a constant, so that there is no loop. */
SAR_INLINE void NAME(prefetch_row)(const int n_vec, const T *row, int64_t bytes)
{
    if (bytes == n_vec * 64) {
#pragma GCC unroll 8
        for (int v = 0; v < n_vec; v++) SAR_PREFETCH((const char *)row + v * 64);
    } else
        for (int64_t b = 0; b < bytes; b += 64) SAR_PREFETCH((const char *)row + b);
}

/* LANES values anywhere in an array; the compiler splits them for narrower registers. Vectors are said, not left to the compiler to
 * find: it would make the overlapping one of many small pieces. */
typedef T NAME(vector) __attribute__((vector_size(64), aligned(sizeof(T)), may_alias));
#define VECTOR(address) (*(const NAME(vector) *)(address))

typedef T NAME(half_vector) __attribute__((vector_size(32)));
typedef T NAME(quarter_vector) __attribute__((vector_size(16)));

/* Sum of a vector's values, halves first. */
SAR_INLINE T NAME(sum_of)(NAME(vector) v)
{
    NAME(half_vector) half[2];
    NAME(quarter_vector) quarter[2];
    memcpy(half, &v, sizeof half);
    half[0] += half[1];
    memcpy(quarter, &half[0], sizeof quarter);
    quarter[0] += quarter[1];
#if LANES == 16
    return (quarter[0][0] + quarter[0][2]) + (quarter[0][1] + quarter[0][3]);
#else
    return quarter[0][0] + quarter[0][1];
#endif
}

/* Over n_vec vectors, of which the last starts at column `last` of x (all others one after another):
 *   summing: out[f] += scale * sum_k coef[k] * row_k[f], begins: =;   dotting: dot[k] += sum_f a[f] * row_k[f]
 * a is 0 where the last vector overlaps; coef is read if `weighted`; `prefetch` bytes of the row AHEAD edges on are brought in.
 * Arguments up to `dotting` are constants where this is inlined. */
SAR_INLINE void NAME(pass)(const int n_vec, const int weighted, const int summing, const int dotting, T *restrict out,
                           T *restrict dot, const T *restrict x, int64_t stride, int64_t last, const I *restrict index,
                           const T *restrict coef, const T *restrict a, int n, int64_t n_ahead, int64_t prefetch, T scale,
                           int begins)
{
    NAME(vector) sum[VECTORS];
    const int whole = n_vec - 1, ahead = AHEAD(stride * (int64_t)sizeof(T));
#pragma GCC unroll 8
    for (int v = 0; v < n_vec; v++) sum[v] = (NAME(vector)){0};
    for (int k = 0; k < n; k++) {
        const T *row = x + (int64_t)index[k] * stride;
        if (prefetch && k + ahead < n_ahead) NAME(prefetch_row)(n_vec, x + (int64_t)index[k + ahead] * stride, prefetch);
        if (summing && weighted) {
#pragma GCC unroll 8
            for (int v = 0; v < whole; v++) sum[v] += coef[k] * VECTOR(row + v * LANES);
            sum[whole] += coef[k] * VECTOR(row + last);
        } else if (summing) {
#pragma GCC unroll 8
            for (int v = 0; v < whole; v++) sum[v] += VECTOR(row + v * LANES);
            sum[whole] += VECTOR(row + last);
        }
        if (dotting) {
            NAME(vector) t = VECTOR(a + whole * LANES) * VECTOR(row + last);
#pragma GCC unroll 8
            for (int v = 0; v < whole; v++) t += VECTOR(a + v * LANES) * VECTOR(row + v * LANES);
            dot[k] += NAME(sum_of)(t);
        }
    }
    if (!summing) return;
    T tail[LANES];
    memcpy(tail, &sum[whole], sizeof tail);
#pragma GCC unroll 8
    for (int v = 0; v < whole; v++) {
        NAME(vector) *to = (NAME(vector) *)(out + v * LANES);
        *to = begins ? scale * sum[v] : *to + scale * sum[v];
    }
    for (int f = whole * LANES; f < (int)last + LANES; f++) {
        T value = tail[f - (int)last];
        out[f] = begins ? scale * value : out[f] + scale * value;
    }
}

/* The same for a row of fewer columns than LANES: two pieces of `lanes` values, a power of two; the second starts at `last`. */
SAR_INLINE void NAME(narrow_pass)(const int lanes, const int weighted, const int summing, const int dotting, T *restrict out,
                                  T *restrict dot, const T *restrict x, int64_t stride, int64_t last, const I *restrict index,
                                  const T *restrict coef, const T *restrict a, int n, int64_t n_ahead, int64_t prefetch,
                                  T scale, int begins)
{
    const int ahead = AHEAD(stride * (int64_t)sizeof(T));
    T sum[LANES] = {0};
    for (int k = 0; k < n; k++) {
        const T *row = x + (int64_t)index[k] * stride;
        if (prefetch && k + ahead < n_ahead) NAME(prefetch_row)(0, x + (int64_t)index[k + ahead] * stride, prefetch);
        if (summing) {
            T c = weighted ? coef[k] : 1;
            for (int u = 0; u < lanes; u++) sum[u] += weighted ? c * row[u] : row[u];
            for (int u = 0; u < lanes; u++) sum[lanes + u] += weighted ? c * row[last + u] : row[last + u];
        }
        if (dotting) {
            T t[LANES / 2];
            for (int u = 0; u < lanes; u++) t[u] = a[u] * row[u] + a[lanes + u] * row[last + u];
            for (int half = lanes / 2; half; half /= 2) for (int u = 0; u < half; u++) t[u] += t[u + half];
            dot[k] += t[0];
        }
    }
    if (!summing) return;
    for (int f = 0; f < (int)last + lanes; f++) {
        T value = f < lanes ? sum[f] : sum[lanes + f - (int)last];
        out[f] = begins ? scale * value : out[f] + scale * value;
    }
}

/* The pass for `width` <= VECTORS * LANES columns of a row. `end` columns of it lie before the last of them, so that a vector of no
 * more than that may reach back. */
SAR_INLINE void NAME(any_pass)(const int weighted, const int summing, const int dotting, T *restrict out, T *restrict dot,
                               const T *restrict x, int64_t stride, int64_t end, int64_t width, const I *restrict index,
                               const T *restrict coef, const T *restrict a, int n, int64_t n_ahead, int64_t prefetch,
                               T scale, int begins)
{
#define PASS(n_vec) \
    NAME(pass)(n_vec, weighted, summing, dotting, out, dot, x, stride, width - LANES, index, coef, a, n, n_ahead, prefetch, scale, begins)
#define NARROW(lanes) \
    NAME(narrow_pass)(lanes, weighted, summing, dotting, out, dot, x, stride, width - lanes, index, coef, a, n, n_ahead, prefetch, \
                      scale, begins)
    if (end >= LANES)
        switch ((width + LANES - 1) / LANES) {
        case 1: PASS(1); return;
        case 2: PASS(2); return;
        case 3: PASS(3); return;
        case 4: PASS(4); return;
        case 5: PASS(5); return;
        case 6: PASS(6); return;
        case 7: PASS(7); return;
        default: PASS(8); return;
        }
    if (LANES > 8 && width > 8) NARROW(8);
    else if (width > 4) NARROW(4);
    else if (width > 2) NARROW(2);
    else NARROW(1);
#undef NARROW
#undef PASS
}

/* Bytes to prefetch in the pass from column `f` on, x being there: of its own columns, where the caller gives -1. Rows that do not
 * start at a cache line reach into one more. */
SAR_INLINE int64_t NAME(prefetch_bytes)(int64_t given, const T *x, int64_t stride, int64_t f, int64_t width)
{
    int64_t bytes = given < 0 ? width * (int64_t)sizeof(T) : f == 0 ? given : 0;
    int aligned = (((uintptr_t)x | (uintptr_t)stride * sizeof(T)) & 63) == 0;
    return bytes && !aligned ? bytes + 63 : bytes;
}

/* out[f] += scale * sum_k coef[k] * x[index[k]*stride + f],   f < end; begins: =; not weighted: coef is 1.
 * prefetch: bytes of each row, 0 where they are in the cache already, -1: the columns that are summed */
SAR_INLINE void NAME(gather_sum)(const int weighted, T *restrict out, const T *restrict x, int64_t stride, int64_t end,
                                 const I *restrict index, const T *restrict coef, int n, int64_t n_ahead, int64_t prefetch,
                                 T scale, int begins)
{
    for (int64_t f = 0; f < end; f += VECTORS * LANES) {
        int64_t width = end - f < VECTORS * LANES ? end - f : VECTORS * LANES;
        int64_t bytes = NAME(prefetch_bytes)(prefetch, x + f, stride, f, width);
        NAME(any_pass)(weighted, 1, 0, out + f, NULL, x + f, stride, end, width, index, coef, NULL, n, n_ahead, bytes, scale,
                       begins);
    }
}

/* Copy `width` values of a to `padded` as `pass` reads them: zeros where the last vector overlaps the one before. */
SAR_INLINE void NAME(pad_row)(T *restrict padded, const T *restrict a, int64_t end, int64_t width)
{
    int64_t lanes = LANES;
    while (end < LANES && lanes > 1 && lanes >= width) lanes /= 2;      /* as any_pass chooses */
    int64_t whole = (width - 1) / lanes * lanes;
    for (int64_t f = 0; f < whole; f++) padded[f] = a[f];
    for (int64_t u = 0; u < lanes; u++) padded[whole + u] = width - lanes + u < whole ? 0 : a[width - lanes + u];
}

/* dot[k] = sum_f a[f] * x[index[k]*stride + f],   f < end; if `summing`, out[f] += sum_k coef[k] * x[index[k]*stride + f] too:
 * each row is read once for both. prefetch as for gather_sum. */
SAR_INLINE void NAME(gather_dot)(const int summing, T *restrict dot, T *restrict out, const T *restrict a, const T *restrict x,
                                 int64_t stride, int64_t end, const I *restrict index, const T *restrict coef, int n,
                                 int64_t n_ahead, int64_t prefetch)
{
    T padded[VECTORS * LANES];
    padded[1] = 0;      /* the second piece of a row of one column */
    for (int k = 0; k < n; k++) dot[k] = 0;
    for (int64_t f = 0; f < end; f += VECTORS * LANES) {
        int64_t width = end - f < VECTORS * LANES ? end - f : VECTORS * LANES;
        int64_t bytes = NAME(prefetch_bytes)(prefetch, x + f, stride, f, width);
        NAME(pad_row)(padded, a + f, end, width);
        NAME(any_pass)(summing, summing, 1, out + f, dot, x + f, stride, end, width, index, coef, padded, n, n_ahead, bytes, 1, 0);
    }
}

#undef VECTOR
