/* Conversion of rows between float32 and bfloat16, which is the upper half of a float32: rounding to nearest, ties to
 * even, and back. The same code serves every instruction set. */
#include "sarlite.h"

/* The value is selected as 32 bits and shifted as a signed number, so that one instruction packs a vector. */
static inline uint16_t narrow_value(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    int32_t chosen = (int32_t)(value != value ? bits | 0x400000 : rounded);     /* a NaN stays one, quiet */
    return (uint16_t)(int16_t)(chosen >> 16);
}

/* out[r,f] = bfloat16(scale[r] * x[r,f])
 *
 * inputs   x (n_rows, n_feat), scale (n_rows) or NULL: 1
 * output   out (n_rows, n_feat), overwritten
 * cost     O(n_rows * n_feat)
 */
int sar_narrow_forward(uint16_t *restrict out, const float *restrict x, const float *restrict scale, int64_t n_rows,
                       int64_t n_feat)
{
#pragma omp parallel for num_threads(sar_team(n_rows * n_feat)) schedule(static)
    for (int64_t r = 0; r < n_rows; r++) {
        const float factor = scale ? scale[r] : 1;
        for (int64_t f = 0; f < n_feat; f++) out[r * n_feat + f] = narrow_value(factor * x[r * n_feat + f]);
    }
    return SAR_OK;
}

/* out[k] = float32(x[k]), exact
 *
 * inputs   x (n)
 * output   out (n), overwritten
 * cost     O(n)
 */
int sar_widen_forward(float *restrict out, const uint16_t *restrict x, int64_t n)
{
    uint32_t *restrict bits = (uint32_t *)out;      /* of an array of Python's, whose type C does not see */
#pragma omp parallel for num_threads(sar_team(n)) schedule(static)
    for (int64_t k = 0; k < n; k++) bits[k] = (uint32_t)x[k] << 16;
    return SAR_OK;
}
