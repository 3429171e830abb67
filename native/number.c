/* The rows of a batch: the set of the part's rows that the batch has, and the number of each row in the batch. The part's
 * rows are the columns of its CSR, with one bit each: `members` (n_words of 64 columns) marks the rows of the batch,
 * `seen` (n_threads, n_words) the rows that each thread has met, and `summary` the words of `seen` that are not 0. So new
 * rows are found in ascending order without a pass over all columns. All bits are 0 between batches.
 */
#ifndef I
#include "sarlite.h"
#define KERNEL "number.c"
#include "each_indices.h"
#else
#ifndef NUMBER_ONE
#define NUMBER_ONE ((uint64_t)1)

/* The number of set bits of a word, and the number of its lowest set bit. */
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
#endif

/* Append the distinct seeds that are not rows of the batch yet, in the order of their first occurrence; numbers[k] is
 * the number of seeds[k] in the batch.
 *
 * inputs   seeds (n_seeds): columns
 * output   rows (*n_rows + n_seeds): the first *n_rows are the batch's, before and after; numbers (n_seeds); members
 *          and place updated
 * cost     O(n_seeds)
 */
int NAME(sar_number_seeds)(I *restrict rows, int64_t *restrict numbers, int64_t *restrict n_rows, const NAME(sar_numbering) *numbering,
                           const I *restrict seeds, int64_t n_seeds)
{
    uint64_t *restrict members = numbering->members;
    I *restrict place = numbering->place;
    int64_t n = *n_rows;
    for (int64_t k = 0; k < n_seeds; k++) {
        uint64_t *word = members + (seeds[k] >> 6), bit = NUMBER_ONE << (seeds[k] & 63);
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

/* Count the new rows in each of n_parts ranges of columns, and merge the bits of all threads into those of the first
 * thread.
 *
 * output   counts (n_parts), overwritten; seen, summary updated: further threads' 0
 * cost     O(new rows + n_words / 64)
 */
int NAME(sar_number_count)(int64_t *restrict counts, const NAME(sar_numbering) *numbering, int64_t n_parts)
{
    uint64_t *restrict seen = numbering->seen, *restrict summary = numbering->summary;
    const uint64_t *restrict members = numbering->members;
    const int64_t n_words = numbering->n_words, n_threads = numbering->n_threads;
    int team = sar_team(16 * n_words);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t p = 0; p < n_parts; p++) {
        int64_t n = 0;
        for (int64_t s = sar_split(n_words / 64, p, n_parts); s < sar_split(n_words / 64, p + 1, n_parts); s++) {
            for (int64_t t = 1; t < n_threads; t++) {
                for (uint64_t words = summary[t * (n_words / 64) + s]; words; words &= words - 1) {
                    int64_t w = 64 * s + NUMBER_LOWEST(words);
                    seen[w] |= seen[t * n_words + w];
                    seen[t * n_words + w] = 0;
                }
                summary[s] |= summary[t * (n_words / 64) + s];
                summary[t * (n_words / 64) + s] = 0;
            }
            for (uint64_t words = summary[s]; words; words &= words - 1) {
                int64_t w = 64 * s + NUMBER_LOWEST(words);
                seen[w] &= ~members[w];
                n += NUMBER_BITS(seen[w]);
            }
        }
        counts[p] = n;
    }
    return SAR_OK;
}

/* Add the new rows to the batch, in ascending order, with the numbers `first`, `first` + 1, ...
 *
 * inputs   starts (n_parts + 1): new rows before each range of columns, from the counts
 * output   rows (new rows), overwritten; members and place updated, seen and summary 0
 * cost     O(new rows + n_words / 64)
 */
int NAME(sar_number_join)(I *restrict rows, const NAME(sar_numbering) *numbering, const int64_t *restrict starts, int64_t first,
                          int64_t n_parts)
{
    uint64_t *restrict members = numbering->members, *restrict seen = numbering->seen, *restrict summary = numbering->summary;
    I *restrict place = numbering->place;
    const int64_t n_words = numbering->n_words;
    int team = sar_team(16 * n_words + 4 * starts[n_parts]);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t p = 0; p < n_parts; p++) {
        int64_t n = starts[p];
        for (int64_t s = sar_split(n_words / 64, p, n_parts); s < sar_split(n_words / 64, p + 1, n_parts); s++) {
            for (uint64_t words = summary[s]; words; words &= words - 1) {
                int64_t w = 64 * s + NUMBER_LOWEST(words);
                for (uint64_t bits = seen[w]; bits; bits &= bits - 1) {
                    int64_t column = 64 * w + NUMBER_LOWEST(bits);
                    place[column] = (I)(first + n);
                    rows[n++] = (I)column;
                }
                members[w] |= seen[w];
                seen[w] = 0;
            }
            summary[s] = 0;
        }
    }
    return SAR_OK;
}

/* columns[e] = place[columns[e]]: replace sources, which are all rows of the batch, by their numbers. O(n_columns). */
int NAME(sar_number_columns)(I *restrict columns, const I *restrict place, int64_t n_columns)
{
    int team = sar_team(n_columns);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t e = 0; e < n_columns; e++) columns[e] = place[columns[e]];
    return SAR_OK;
}

/* Remove rows from the batch; at the end of a batch, all its rows. Cost O(n_rows). */
int NAME(sar_number_end)(uint64_t *restrict members, const I *restrict rows, int64_t n_rows)
{
    for (int64_t k = 0; k < n_rows; k++) members[rows[k] >> 6] &= ~(NUMBER_ONE << (rows[k] & 63));
    return SAR_OK;
}
#endif
