/* The rows of a batch: which of the part's rows it has, and the number of each in it. A part's rows are the columns of its CSR, each a
 * bit: marks[2 w] has the batch's among the columns 64 w .. 64 w + 63, marks[2 w + 1] those that are new; a bit of the summary stands for
 * one w with new ones. So new rows are found in ascending order without a pass over all columns, but for one bit in 64. All bits are 0
 * between batches. */
#ifndef I
#include "sarlite.h"
#define KERNEL "number.c"
#include "each_indices.h"
#else
#ifndef NUMBER_ONE
#define NUMBER_ONE ((uint64_t)1)

/* The number of bits that are set; of the lowest. */
#ifdef __GNUC__
#define NUMBER_BITS(word) __builtin_popcountll(word)
#define NUMBER_LOWEST(word) __builtin_ctzll(word)
#else
static int number_bits(uint64_t word)
{
    int n = 0;
    for (; word; word &= word - 1) n++;
    return n;
}
#define NUMBER_BITS(word) number_bits(word)
#define NUMBER_LOWEST(word) number_bits(((word) & (0 - (word))) - 1)
#endif

/* Words of the summary. */
static inline int64_t number_words(int64_t n_columns) { return (n_columns + 4095) / 4096; }
#endif

/* Begin a batch with its seeds, each once, in the order of their first places; numbers[k] is the number of seeds[k].
 *
 * inputs   seeds (n_seeds): columns
 * output   rows (n_seeds): the first *n_rows are the batch's; numbers (n_seeds); marks and place updated
 * cost     O(n_seeds)
 */
int NAME(sar_number_seeds)(I *restrict rows, int64_t *restrict numbers, int64_t *restrict n_rows, uint64_t *restrict marks,
                           I *restrict place, const I *restrict seeds, int64_t n_seeds)
{
    int64_t n = 0;
    for (int64_t k = 0; k < n_seeds; k++) {
        uint64_t *word = marks + 2 * (seeds[k] >> 6), bit = NUMBER_ONE << (seeds[k] & 63);
        if (!(*word & bit)) {
            *word |= bit;
            place[seeds[k]] = (I)n;
            rows[n++] = seeds[k];
        }
        numbers[k] = place[seeds[k]];
    }
    *n_rows = n;
    return SAR_OK;
}

/* counts[p]: the new rows of each of n_parts ranges of columns.
 *
 * cost     O(new rows + n_columns / 4096)
 */
int NAME(sar_number_count)(int64_t *restrict counts, const uint64_t *restrict marks, const uint64_t *restrict summary, int64_t n_parts,
                           int64_t n_columns)
{
    int64_t n_words = number_words(n_columns);
    int team = sar_team(32 * n_words);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t p = 0; p < n_parts; p++) {
        int64_t n = 0;
        for (int64_t s = sar_split(n_words, p, n_parts); s < sar_split(n_words, p + 1, n_parts); s++)
            for (uint64_t blocks = summary[s]; blocks; blocks &= blocks - 1)
                n += NUMBER_BITS(marks[2 * (64 * s + NUMBER_LOWEST(blocks)) + 1]);
        counts[p] = n;
    }
    return SAR_OK;
}

/* Take the new rows into the batch, in ascending order: their numbers go on from `first`.
 *
 * inputs   starts (n_parts + 1): new rows before each range of columns, from the counts
 * output   rows (new rows), overwritten; marks and place updated, summary 0
 * cost     O(new rows + n_columns / 4096)
 */
int NAME(sar_number_join)(I *restrict rows, uint64_t *restrict marks, uint64_t *restrict summary, I *restrict place,
                          const int64_t *restrict starts, int64_t first, int64_t n_parts, int64_t n_columns)
{
    int64_t n_words = number_words(n_columns);
    int team = sar_team(32 * n_words + 8 * starts[n_parts]);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t p = 0; p < n_parts; p++) {
        int64_t n = starts[p];
        for (int64_t s = sar_split(n_words, p, n_parts); s < sar_split(n_words, p + 1, n_parts); s++) {
            for (uint64_t blocks = summary[s]; blocks; blocks &= blocks - 1) {
                int64_t w = 64 * s + NUMBER_LOWEST(blocks);
                for (uint64_t bits = marks[2 * w + 1]; bits; bits &= bits - 1) {
                    int64_t column = 64 * w + NUMBER_LOWEST(bits);
                    place[column] = (I)(first + n);
                    rows[n++] = (I)column;
                }
                marks[2 * w] |= marks[2 * w + 1];
                marks[2 * w + 1] = 0;
            }
            summary[s] = 0;
        }
    }
    return SAR_OK;
}

/* columns[e] = place[columns[e]]: sources become numbers in the batch, which has them all. Cost O(n_columns). */
int NAME(sar_number_columns)(I *restrict columns, const I *restrict place, int64_t n_columns)
{
    int team = sar_team(n_columns);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t e = 0; e < n_columns; e++) columns[e] = place[columns[e]];
    return SAR_OK;
}

/* End a batch: forget its rows. Cost O(n_rows). */
int NAME(sar_number_end)(uint64_t *restrict marks, const I *restrict rows, int64_t n_rows)
{
    for (int64_t k = 0; k < n_rows; k++) marks[2 * (rows[k] >> 6)] = 0;
    return SAR_OK;
}
#endif
