/* exp for arguments <= 0 (or slightly above), branch-free so that it vectorises. A template: T, FLOAT_BITS and NAME
 * are set.
 *
 * exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln(2)/2: Cody-Waite reduction in two parts and a Taylor
 * polynomial whose remainder is below half a unit in the last place. Adding `magic` rounds to an integer and leaves
 * it in the low bits. 2^n is applied in two factors, so results below the smallest normal number are right too; -inf
 * gives 0, NaN stays NaN. expm1 shares the reduction. */

/* 2^n for an integer-valued n with |n| < 1000 (double), 120 (float). */
SAR_INLINE T NAME(exp2_integer)(T n)
{
#if FLOAT_BITS == 32
    union { float f; int32_t i; } u = {.f = n + 12582912.0f};
    u.i = (int32_t)((uint32_t)(u.i - 0x4B400000 + 127) << 23);
#else
    union { double f; int64_t i; } u = {.f = n + 6755399441055744.0};
    u.i = (int64_t)((uint64_t)(u.i - 0x4338000000000000 + 1023) << 52);
#endif
    return u.f;
}

/* Return expm1(r) for the reduced argument r of `bounded`, and set *n. */
SAR_INLINE T NAME(reduced_expm1)(T bounded, T *n)
{
#if FLOAT_BITS == 32
    const T magic = 12582912.0f;
    const T log2e = 1.44269504089f, ln2_high = 0.693145751953125f, ln2_low = 1.42860677e-06f;
#else
    const T magic = 6755399441055744.0;
    const T log2e = 1.4426950408889634, ln2_high = 0x1.62e42feep-1, ln2_low = 1.9082149292705877e-10;
#endif
    *n = bounded * log2e + magic - magic;
    T r = bounded - *n * ln2_high - *n * ln2_low;
#if FLOAT_BITS == 32
    T y = 1.0f / 5040;
#else
    T y = 1.0 / 6227020800;
    y = y * r + 1.0 / 479001600;
    y = y * r + 1.0 / 39916800;
    y = y * r + 1.0 / 3628800;
    y = y * r + 1.0 / 362880;
    y = y * r + 1.0 / 40320;
    y = y * r + 1.0 / 5040;
#endif
    y = y * r + (T)(1.0 / 720);
    y = y * r + (T)(1.0 / 120);
    y = y * r + (T)(1.0 / 24);
    y = y * r + (T)(1.0 / 6);
    y = y * r + (T)0.5;
    return y * r * r + r;
}

SAR_INLINE T NAME(exp_negative)(T x)
{
    const T magic = FLOAT_BITS == 32 ? 12582912.0 : 6755399441055744.0, lowest = FLOAT_BITS == 32 ? -104.0 : -746.0;
    T n, y = NAME(reduced_expm1)(x < lowest ? lowest : x, &n) + 1;
    T half = n * (T)0.5 + magic - magic;
    y = y * NAME(exp2_integer)(half) * NAME(exp2_integer)(n - half);
    return x < lowest ? 0 : y;
}

/* exp(x) - 1 for x <= 0 as 2^n * expm1(r) + (2^n - 1). Near 0, n = 0, so no digits are lost. Below -40 the result is -1. */
SAR_INLINE T NAME(expm1_negative)(T x)
{
    T n, y = NAME(reduced_expm1)(x < -40 ? -40 : x, &n), power = NAME(exp2_integer)(n);
    return power * y + (power - 1);
}
