/* Sums on a grid, whose partial sums are exact (Demmel and Nguyen, Parallel reproducible summation, 2015). A template:
 * T, FLOAT_BITS and NAME are set.
 *
 * With m = 1.5 * 2^k and |v| < 2^(k-1), (v + m) - m is v rounded to a multiple of 2^(k-52). Multiples of it whose sum
 * is below 2^(k-1) add without rounding, so in any order and by any threads and ranks the sum has the same bits. Of
 * float64 what the first grid leaves is added on a second, finer one. Infinities and NaN pass through: an infinity
 * leaves NaN on the second level, so a first level that is not finite is the whole sum.
 *
 * Of float a sum may begin at m itself: s += v rounds v to the grid, wherever s stands, unless v is a tie, half of a step,
 * which goes to where s is even. So v is p (1 + 2^-52), the factor within one of the two that make p. With e the sum of
 * their exponents, of 24 and at most 26 bits, p is a multiple of 2^(e-48), and v is above it by at most 2^(e-50), fused or
 * rounded by itself. A step is at least 2^(e-48), as values are below 2^(k-3). So v is no tie, and nothing between p and v
 * is: the sum has the same bits in any order, fused or not.
 *
 * A sum is LEVELS rows of doubles, as are the m that it is added with. */
#undef LEVELS
#if FLOAT_BITS == 32
#define LEVELS 1
#else
#define LEVELS 2
#endif

/* sum[f] += c * x[f] of n values; the second level stands `apart` values behind the first. */
SAR_INLINE void NAME(add_on_grid)(double *restrict sum, const double *restrict m, int64_t apart, double c, const T *restrict x, int64_t n)
{
    for (int64_t f = 0; f < n; f++) {
        double v = c * (double)x[f], q = (v + m[f]) - m[f];
        sum[f] += q;
#if LEVELS == 2
        double left = v - q;
        sum[apart + f] += (left + m[apart + f]) - m[apart + f];
#endif
    }
#if LEVELS == 1
    (void)apart;
#endif
}

/* to[f] = the sum of the levels of n sums, times `by`, rounded to T; with `accumulate` added. `apart` as above. */
SAR_INLINE void NAME(round_row)(T *restrict to, const double *restrict sums, int64_t apart, double by, int accumulate,
                                int64_t n)
{
    for (int64_t f = 0; f < n; f++) {
        double sum = sums[f], low = sums[(LEVELS - 1) * apart + f];
        if (LEVELS == 2) sum += sum - sum == 0 ? low : 0;
        T whole = (T)(sum * by);
        to[f] = accumulate ? to[f] + whole : whole;
    }
}
