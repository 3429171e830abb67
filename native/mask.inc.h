/* The mask of dropout, drawn for a block of columns of one row. A template: T and NAME are set. */
#ifndef MASK_COLUMNS
#define MASK_COLUMNS 256
#endif

/* factor[f] = word < floor(p * 2^32) ? 0 : 1/(1-p),   word = Philox(ids[r], c / 4; key)[c % 4],   c = first + f, f < n.
 * `first` is a multiple of 4; factor has MASK_COLUMNS places, of which those up to the next multiple of 4 after n are written. */
SAR_INLINE void NAME(dropout_factors)(T *restrict factor, const struct sar_dropout *dropout, int64_t r, int64_t first, int n)
{
    const uint64_t id = (uint64_t)dropout->ids[r], key = dropout->key;
    uint32_t threshold = philox_threshold(dropout->p);
    T keep = (T)(1 / (1 - dropout->p));
    for (int b = 0; b < (n + 3) / 4; b++) {
        uint32_t w[4] = {(uint32_t)id, (uint32_t)(id >> 32), (uint32_t)(first / 4 + b), 0};
        philox4x32(w, (uint32_t)key, (uint32_t)(key >> 32));
        factor[4 * b] = w[0] < threshold ? 0 : keep;
        factor[4 * b + 1] = w[1] < threshold ? 0 : keep;
        factor[4 * b + 2] = w[2] < threshold ? 0 : keep;
        factor[4 * b + 3] = w[3] < threshold ? 0 : keep;
    }
}
