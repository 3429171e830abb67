/* Philox4x32-10 of several counters side by side, a word in each lane of 64 bits, whose upper half is unused: so
 * AVX2 and AVX-512 multiply without a shuffle, which GCC does not find by itself. Without them PHILOX_LANES is not
 * defined.
 * To be included where the instruction set is chosen. */
#ifndef SARLITE_PHILOX_WIDE_H
#define SARLITE_PHILOX_WIDE_H

#if defined(__AVX2__) && defined(__GNUC__) && !defined(__clang__)
#ifdef __AVX512F__
#define PHILOX_LANES 8
#else
#define PHILOX_LANES 4
#endif
typedef uint64_t philox_wide __attribute__((vector_size(8 * PHILOX_LANES)));
typedef int philox_halves __attribute__((vector_size(8 * PHILOX_LANES)));
typedef long long philox_signed __attribute__((vector_size(8 * PHILOX_LANES)));

/* The products of the lower halves. */
SAR_INLINE philox_wide philox_product(philox_wide a, philox_wide b)
{
#ifdef __AVX512F__
    return (philox_wide)__builtin_ia32_pmuludq512_mask((philox_halves)a, (philox_halves)b, (philox_signed){0}, (unsigned char)0xff);
#else
    return (philox_wide)__builtin_ia32_pmuludq256((philox_halves)a, (philox_halves)b);
#endif
}

/* Replace the counters w, n vectors of each word, by their random words. */
SAR_INLINE void philox_rounds(philox_wide w[4][4], const int n, uint64_t key)
{
    const philox_wide factor0 = (philox_wide){0} + 0xD2511F53u, factor1 = (philox_wide){0} + 0xCD9E8D57u;
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        for (int v = 0; v < n; v++) {
            philox_wide product0 = philox_product(w[0][v], factor0), product1 = philox_product(w[2][v], factor1);
            w[0][v] = (product1 >> 32) ^ w[1][v] ^ (uint64_t)key0;
            w[2][v] = (product0 >> 32) ^ w[3][v] ^ (uint64_t)key1;
            w[1][v] = product1;
            w[3][v] = product0;
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}
#endif
#endif
