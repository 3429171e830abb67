/* The generator as a function of its own, for a test against the known answers of Random123. */
#include "philox.h"

/* out = Philox4x32-10(counter, key). counter (4), key (2), out (4), overwritten. */
int sar_philox4x32(uint32_t *restrict out, const uint32_t *restrict counter, const uint32_t *restrict key)
{
    uint32_t word[4] = {counter[0], counter[1], counter[2], counter[3]};
    philox4x32(word, key[0], key[1]);
    memcpy(out, word, sizeof word);
    return SAR_OK;
}
