/* Rows of small integers with one power of two each, as ranks send them: x ~ q 2^exponent, |q| <= 127 of 8 bits, 7 of 4. */
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

/* The least exponent, at least LEAST, with max |x| <= 127 * 2^exponent (8 bits) or 7 * 2^exponent (4 bits); NOT_FINITE
 * where a value is infinite or no number. */
static inline int exponent_of(const float *restrict x, int64_t n, int bits)
{
    int32_t largest = 0;                        /* the order of numbers without sign is the order of their bits */
    for (int64_t k = 0; k < n; k++) {
        int32_t value;
        memcpy(&value, x + k, sizeof value);
        value &= 0x7fffffff;
        largest = value > largest ? value : largest;
    }
    if (largest >= INFINITE) return NOT_FINITE;
    const int32_t last = bits == 8 ? 0x7e0000 : 0x600000;      /* 127 / 64 and 7 / 4, without the leading 1 */
    const int exponent = (largest >> 23) - 127 - (bits - 2) + ((largest & 0x7fffff) > last);
    return exponent < LEAST ? LEAST : exponent;
}

/* out[r] = (exponent, q[r,0], q[r,1], ..): q[r,f] = x[r,f] / 2^exponent, rounded to nearest, ties to even
 *
 * inputs   x (n_rows, n_feat); bits 8 or 4
 * output   out (n_rows, 1 + ceil(n_feat * bits / 8)), overwritten; of 4 bits the first of two values is the lower half of a byte
 * cost     O(n_rows * n_feat)
 */
int sar_quantize_forward(int8_t *restrict out, const float *restrict x, int64_t n_rows, int64_t n_feat, int bits)
{
    const int64_t n_bytes = bits == 8 ? n_feat : (n_feat + 1) / 2;
#pragma omp parallel for num_threads(sar_team(n_rows * n_feat)) schedule(static)
    for (int64_t r = 0; r < n_rows; r++) {
        const float *restrict row = x + r * n_feat;
        int8_t *restrict to = out + r * (1 + n_bytes);
        const int exponent = exponent_of(row, n_feat, bits);
        to[0] = (int8_t)exponent;
        to++;
        if (exponent == NOT_FINITE) {
            memset(to, 0, (size_t)n_bytes);
            continue;
        }
        const float factor = power_of_two(-exponent);
        if (bits == 8) {
            for (int64_t f = 0; f < n_feat; f++) to[f] = (int8_t)(int32_t)(row[f] * factor + TO_INTEGER - TO_INTEGER);
            continue;
        }
        for (int64_t k = 0; k < n_bytes; k++) {
            const int low = (int)(row[2 * k] * factor + TO_INTEGER - TO_INTEGER);
            const int high = 2 * k + 1 < n_feat ? (int)(row[2 * k + 1] * factor + TO_INTEGER - TO_INTEGER) : 0;
            to[k] = (int8_t)((low & 15) | (int)((unsigned)high << 4));
        }
    }
    return SAR_OK;
}

/* out[r,f] = q[r,f] 2^exponent, exact; NaN in a row that is not finite
 *
 * inputs   x (n_rows, 1 + ceil(n_feat * bits / 8)), as sar_quantize_forward leaves it
 * output   out (n_rows, n_feat), overwritten
 * cost     O(n_rows * n_feat)
 */
int sar_dequantize_forward(float *restrict out, const int8_t *restrict x, int64_t n_rows, int64_t n_feat, int bits)
{
    const int64_t n_bytes = bits == 8 ? n_feat : (n_feat + 1) / 2;
#pragma omp parallel for num_threads(sar_team(n_rows * n_feat)) schedule(static)
    for (int64_t r = 0; r < n_rows; r++) {
        const int8_t *restrict from = x + r * (1 + n_bytes) + 1;
        float *restrict row = out + r * n_feat;
        const float factor = from[-1] == NOT_FINITE ? NAN : power_of_two(from[-1]);
        if (bits == 8) {
            for (int64_t f = 0; f < n_feat; f++) row[f] = (float)from[f] * factor;
            continue;
        }
        for (int64_t f = 0; f < n_feat; f++) {
            const int nibble = from[f / 2] >> (f % 2 ? 4 : 0) & 15;
            row[f] = (float)(nibble >= 8 ? nibble - 16 : nibble) * factor;
        }
    }
    return SAR_OK;
}
