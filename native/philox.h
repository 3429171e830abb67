/* Philox4x32-10: a counter-based generator (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3,
 * SC 2011). The same counter and key give the same four words on every machine, thread and rank, so masks are
 * replayed, not stored. */
#ifndef SARLITE_PHILOX_H
#define SARLITE_PHILOX_H

#include "sarlite.h"

SAR_INLINE void philox4x32(uint32_t word[4], uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * word[0];
        uint64_t product1 = (uint64_t)0xCD9E8D57u * word[2];
        word[0] = (uint32_t)(product1 >> 32) ^ word[1] ^ key0;
        word[2] = (uint32_t)(product0 >> 32) ^ word[3] ^ key1;
        word[1] = (uint32_t)product1;
        word[3] = (uint32_t)product0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

/* A value is dropped if its word is below this threshold: floor(p * 2^32), p in [0, 1). */
static inline uint32_t philox_threshold(double p) { return (uint32_t)(p * 4294967296.0); }

#endif
