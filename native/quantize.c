/* Rows of 8-bit integers with one power of two each, as ranks send them: x ~ q 2^exponent, |q| <= 127. */
#include "sarlite.h"

enum { INFINITE = 0x7f800000, NOT_FINITE = 127, LEAST = -126 };
static const float TO_INTEGER = 12582912.0f;     /* 1.5 * 2^23: added and taken away, it leaves the nearest integer, ties to even */

static inline float power_of_two(int exponent)
{
    const int32_t bits = (exponent + 127) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The least exponent, at least LEAST, with max |x| <= 127 * 2^exponent; NOT_FINITE where a value is infinite or no number. */
static inline int exponent_of(const float *restrict x, int64_t n)
{
    int32_t largest = 0;                        /* the order of numbers without sign is the order of their bits */
    for (int64_t k = 0; k < n; k++) {
        int32_t value;
        memcpy(&value, x + k, sizeof value);
        value &= 0x7fffffff;
        largest = value > largest ? value : largest;
    }
    if (largest >= INFINITE) return NOT_FINITE;
    const int32_t last = 0x7e0000;              /* the digits of 127 behind the leading 1 */
    const int exponent = (largest >> 23) - 127 - 6 + ((largest & 0x7fffff) > last);
    return exponent < LEAST ? LEAST : exponent;
}

/* out[r] = (exponent, q[r,0], q[r,1], ..): q[r,f] = x[r,f] / 2^exponent, rounded to nearest, ties to even
 *
 * inputs   x (n_rows, n_feat)
 * output   out (n_rows, 1 + n_feat), overwritten
 * cost     O(n_rows * n_feat)
 */
int sar_quantize_forward(int8_t *restrict out, const float *restrict x, int64_t n_rows, int64_t n_feat)
{
#pragma omp parallel for num_threads(sar_team(n_rows * n_feat)) schedule(static)
    for (int64_t r = 0; r < n_rows; r++) {
        const float *restrict row = x + r * n_feat;
        int8_t *restrict to = out + r * (1 + n_feat);
        const int exponent = exponent_of(row, n_feat);
        *to++ = (int8_t)exponent;
        const float factor = exponent == NOT_FINITE ? 0 : power_of_two(-exponent);
        for (int64_t f = 0; f < n_feat; f++)
            to[f] = factor == 0 ? 0 : (int8_t)(int32_t)(row[f] * factor + TO_INTEGER - TO_INTEGER);
    }
    return SAR_OK;
}

/* out[r,f] = q[r,f] 2^exponent, exact; NaN in a row that is not finite
 *
 * inputs   x (n_rows, 1 + n_feat), as sar_quantize_forward leaves it
 * output   out (n_rows, n_feat), overwritten
 * cost     O(n_rows * n_feat)
 */
int sar_dequantize_forward(float *restrict out, const int8_t *restrict x, int64_t n_rows, int64_t n_feat)
{
#pragma omp parallel for num_threads(sar_team(n_rows * n_feat)) schedule(static)
    for (int64_t r = 0; r < n_rows; r++) {
        const int8_t *restrict from = x + r * (1 + n_feat) + 1;
        const float factor = from[-1] == NOT_FINITE ? NAN : power_of_two(from[-1]);
        for (int64_t f = 0; f < n_feat; f++) out[r * n_feat + f] = (float)from[f] * factor;
    }
    return SAR_OK;
}
