/* The mask of dropout, drawn for a block of columns of one row. A template: T and NAME are set. */
#include "philox_wide.h"
#ifndef MASK_COLUMNS
#define MASK_COLUMNS 256
#define MASK_BLOCKS 16          /* blocks of Philox that are drawn side by side */

/* word[0 .. 4 MASK_BLOCKS]: the random words of the counters (id, first + b, 0), b < MASK_BLOCKS, in this order. */
#ifdef PHILOX_LANES
SAR_INLINE void mask_words(uint32_t *restrict word, uint64_t id, uint32_t first, uint64_t key)
{
    enum { N = MASK_BLOCKS / PHILOX_LANES };
    philox_wide w[4][4], lane = {0};
    for (int l = 0; l < PHILOX_LANES; l++) lane[l] = (uint64_t)l;
    for (int v = 0; v < N; v++) {
        w[0][v] = (philox_wide){0} + id;
        w[1][v] = (philox_wide){0} + (id >> 32);
        w[2][v] = lane + (uint64_t)first + (uint64_t)(PHILOX_LANES * v);
        w[3][v] = (philox_wide){0};
    }
    philox_rounds(w, N, key);
    for (int v = 0; v < N; v++) {
        const philox_wide even = (w[0][v] & 0xffffffffu) | w[1][v] << 32, odd = (w[2][v] & 0xffffffffu) | w[3][v] << 32;
#if PHILOX_LANES == 8
        const philox_wide low = __builtin_shuffle(even, odd, (philox_wide){0, 8, 1, 9, 2, 10, 3, 11});
        const philox_wide high = __builtin_shuffle(even, odd, (philox_wide){4, 12, 5, 13, 6, 14, 7, 15});
#else
        const philox_wide low = __builtin_shuffle(even, odd, (philox_wide){0, 4, 1, 5});
        const philox_wide high = __builtin_shuffle(even, odd, (philox_wide){2, 6, 3, 7});
#endif
        memcpy(word + 4 * PHILOX_LANES * v, &low, sizeof low);
        memcpy(word + 4 * PHILOX_LANES * v + 2 * PHILOX_LANES, &high, sizeof high);
    }
}
#else
SAR_INLINE void mask_words(uint32_t *restrict word, uint64_t id, uint32_t first, uint64_t key)
{
    for (int b = 0; b < MASK_BLOCKS; b++) {
        uint32_t w[4] = {(uint32_t)id, (uint32_t)(id >> 32), first + (uint32_t)b, 0};
        philox4x32(w, (uint32_t)key, (uint32_t)(key >> 32));
        for (int k = 0; k < 4; k++) word[4 * b + k] = w[k];
    }
}
#endif
#endif

/* factor[f] = word < floor(p * 2^32) ? 0 : 1/(1-p),   word = Philox(ids[r], c / 4; key)[c % 4],   c = first + f, f < n.
 * `first` is a multiple of 4. factor has MASK_COLUMNS elements; those from n on are undefined. */
SAR_INLINE void NAME(dropout_factors)(T *restrict factor, const struct sar_dropout *dropout, int64_t r, int64_t first, int n)
{
    enum { AT_ONCE = 4 * MASK_BLOCKS };
    const uint32_t threshold = philox_threshold(dropout->p);
    const T keep = (T)(1 / (1 - dropout->p));
    uint32_t word[AT_ONCE];
    for (int f = 0; f < n; f += AT_ONCE, factor += AT_ONCE) {
        mask_words(word, (uint64_t)dropout->ids[r], (uint32_t)((first + f) / 4), dropout->key);
        for (int k = 0; k < AT_ONCE; k++) factor[k] = word[k] < threshold ? 0 : keep;
    }
}
