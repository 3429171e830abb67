/* Sums and dot products over gathered rows: the inner loops of spmm.c and attend.c. A template: T, LANES and NAME are set.
 *
 * A chunk of at most CHUNK edges of one row lies on the stack: its columns `col`, and a coefficient for each edge. `col` goes on
 * for a few edges beyond the chunk (`n_ahead` in all), into the next row, so that their x rows can be prefetched. */
#ifndef CHUNK
#define CHUNK 256
#define AHEAD 16
#endif

/* Columns of the edges begin .. begin + n and of up to AHEAD edges more; returns how many it wrote. indices NULL: the edge itself. */
SAR_INLINE int NAME(load_columns)(int64_t *restrict col, const I *restrict indices, int64_t begin, int n, int64_t n_edges)
{
    int n_ahead = n_edges - begin < n + AHEAD ? (int)(n_edges - begin) : n + AHEAD;
    if (indices) for (int k = 0; k < n_ahead; k++) col[k] = indices[begin + k];
    else for (int k = 0; k < n_ahead; k++) col[k] = begin + k;
    return n_ahead;
}

/* Prefetch a row of `bytes` bytes; rows need not start at a cache line, so the last byte's line counts too. */
SAR_INLINE void NAME(prefetch_row)(const T *row, int64_t bytes)
{
    for (int64_t b = 0; b < bytes; b += 64) SAR_PREFETCH((const char *)row + b);
    SAR_PREFETCH((const char *)row + bytes - 1);
}

/* How many edges ahead to prefetch: about 8 KiB of rows. */
SAR_INLINE int NAME(prefetch_distance)(int64_t row_bytes)
{
    int64_t distance = row_bytes > 0 ? 8192 / row_bytes : AHEAD;
    return distance < 2 ? 2 : distance > AHEAD ? AHEAD : (int)distance;
}

/* out[f] += scale * sum_k coef[k] * x[col[k]*stride + f] for f = first .. width. `width` is a constant where this is inlined, so
 * that `sum` stays in registers. prefetch_bytes > 0: bring in that many bytes of the rows `distance` edges ahead. */
SAR_INLINE void NAME(sum_block)(const int width, int first, T *restrict out, const T *restrict x, int64_t stride,
                                const int64_t *restrict col, const T *restrict coef, int n, T scale,
                                int n_ahead, int distance, int64_t prefetch_bytes)
{
    T sum[8 * LANES];
    for (int f = 0; f < width; f++) sum[f] = 0;
    for (int k = 0; k < n; k++) {
        const T *row = x + col[k] * stride;
        T c = coef[k];
        if (prefetch_bytes && k + distance < n_ahead) NAME(prefetch_row)(x + col[k + distance] * stride, prefetch_bytes);
        for (int f = 0; f < width; f++) sum[f] += c * row[f];
    }
    if (first == 0) for (int f = 0; f < width; f++) out[f] += scale * sum[f];
    else for (int f = first; f < width; f++) out[f] += scale * sum[f];
}

/* out[f] += scale * sum_k coef[k] * x[col[k]*stride + f] for all f < width, in column blocks of 8, 4, 2, 1 vectors. What is left is
 * covered by one block that ends at `width` and overlaps the one before, of which only the new columns are added. */
SAR_INLINE void NAME(gather_sum)(T *restrict out, const T *restrict x, int64_t stride, int64_t width,
                                 const int64_t *restrict col, const T *restrict coef, int n, T scale,
                                 int n_ahead, int64_t prefetch_bytes)
{
    int64_t f = 0;
    int distance = NAME(prefetch_distance)(prefetch_bytes);
    for (; f + 8 * LANES <= width; f += 8 * LANES, prefetch_bytes = 0)
        NAME(sum_block)(8 * LANES, 0, out + f, x + f, stride, col, coef, n, scale, n_ahead, distance, prefetch_bytes);
    if (f + 4 * LANES <= width) {
        NAME(sum_block)(4 * LANES, 0, out + f, x + f, stride, col, coef, n, scale, n_ahead, distance, prefetch_bytes);
        f += 4 * LANES, prefetch_bytes = 0;
    }
    if (f + 2 * LANES <= width) {
        NAME(sum_block)(2 * LANES, 0, out + f, x + f, stride, col, coef, n, scale, n_ahead, distance, prefetch_bytes);
        f += 2 * LANES, prefetch_bytes = 0;
    }
    if (f + LANES <= width) {
        NAME(sum_block)(LANES, 0, out + f, x + f, stride, col, coef, n, scale, n_ahead, distance, prefetch_bytes);
        f += LANES, prefetch_bytes = 0;
    }
    if (f == width) return;
    if (width >= LANES) {
        int64_t start = width - LANES;
        NAME(sum_block)(LANES, (int)(f - start), out + start, x + start, stride, col, coef, n, scale, n_ahead, distance, 0);
        return;
    }
    for (; f + 4 <= width; f += 4, prefetch_bytes = 0)
        NAME(sum_block)(4, 0, out + f, x + f, stride, col, coef, n, scale, n_ahead, distance, prefetch_bytes);
    for (; f < width; f++, prefetch_bytes = 0)
        NAME(sum_block)(1, 0, out + f, x + f, stride, col, coef, n, scale, n_ahead, distance, prefetch_bytes);
}

/* dot[k] = sum_f a[f] * x[col[k]*stride + f], f < width. Four edges at a time: independent sums that share the loads of a. */
SAR_INLINE void NAME(dot_block)(const int64_t width, T *restrict dot, const T *restrict a, const T *restrict x, int64_t stride,
                                const int64_t *restrict col, int n, int n_ahead, int64_t prefetch_bytes)
{
    int distance = NAME(prefetch_distance)(prefetch_bytes), k = 0;
    for (; k + 4 <= n; k += 4) {
        const T *x0 = x + col[k] * stride, *x1 = x + col[k + 1] * stride;
        const T *x2 = x + col[k + 2] * stride, *x3 = x + col[k + 3] * stride;
        T t0 = 0, t1 = 0, t2 = 0, t3 = 0;
        for (int u = 0; prefetch_bytes && u < 4 && k + u + distance < n_ahead; u++)
            NAME(prefetch_row)(x + col[k + u + distance] * stride, prefetch_bytes);
#pragma omp simd reduction(+ : t0, t1, t2, t3)
        for (int64_t f = 0; f < width; f++) {
            t0 += a[f] * x0[f];
            t1 += a[f] * x1[f];
            t2 += a[f] * x2[f];
            t3 += a[f] * x3[f];
        }
        dot[k] = t0, dot[k + 1] = t1, dot[k + 2] = t2, dot[k + 3] = t3;
    }
    for (; k < n; k++) {
        const T *row = x + col[k] * stride;
        T t = 0;
#pragma omp simd reduction(+ : t)
        for (int64_t f = 0; f < width; f++) t += a[f] * row[f];
        dot[k] = t;
    }
}

SAR_INLINE void NAME(gather_dot)(T *restrict dot, const T *restrict a, const T *restrict x, int64_t stride, int64_t width,
                                 const int64_t *restrict col, int n, int n_ahead, int64_t prefetch_bytes)
{
    if (width == 32) NAME(dot_block)(32, dot, a, x, stride, col, n, n_ahead, prefetch_bytes);
    else if (width == 64) NAME(dot_block)(64, dot, a, x, stride, col, n, n_ahead, prefetch_bytes);
    else NAME(dot_block)(width, dot, a, x, stride, col, n, n_ahead, prefetch_bytes);
}
