/* Kernels for each I; outputs, inputs, sizes. build.py reads this file for cffi. A field that a caller leaves out is
 * NULL or 0. */

/* Arguments of the sampler: the edges to pick from, and the rule. */
typedef struct {
    const int64_t *indptr;              /* of all rows */
    const I *indices;                   /* (n_edges): sources; in each row their ids ascend */
    const uint8_t *loops;               /* by row: it has an added self loop; NULL: none has */
    const int64_t *dst_ids, *src_ids;   /* global ids, by row and by source; NULL: their numbers */
    const I *rows;                      /* (n_rows): those to pick for */
    int64_t n_rows, k;
    int kind;                           /* of enum sar_sampler */
    uint64_t key;
    const uint64_t *variates;           /* (columns) of sar_sample_variates, for SAR_LABOR; NULL: they are drawn for each edge */
} NAME(sar_sampling);

/* The numbering of a batch's rows; see number.c. */
typedef struct {
    uint64_t *members;          /* (n_words) */
    I *place;                   /* (columns) */
    uint64_t *seen, *summary;   /* (n_threads, n_words), (n_threads, n_words / 64) */
    int64_t n_words, n_threads;
} NAME(sar_numbering);

int NAME(sar_sample_counts)(int64_t *restrict out_indptr, const NAME(sar_sampling) *s);
int NAME(sar_sample_variates)(uint64_t *restrict variates, const NAME(sar_sampling) *s, int64_t n);
int NAME(sar_sample)(I *restrict sources, I *restrict positions, const NAME(sar_numbering) *numbering, uint64_t *restrict workspace,
                     const int64_t *restrict out_indptr, const NAME(sar_sampling) *s, int64_t n_workspace, int64_t n_threads);
int NAME(sar_number_seeds)(I *restrict rows, int64_t *restrict numbers, int64_t *restrict n_rows, const NAME(sar_numbering) *numbering,
                           const I *restrict seeds, int64_t n_seeds);
int NAME(sar_number_count)(int64_t *restrict counts, const NAME(sar_numbering) *numbering, int64_t n_parts);
int NAME(sar_number_join)(I *restrict rows, const NAME(sar_numbering) *numbering, const int64_t *restrict starts, int64_t first,
                          int64_t n_parts);
int NAME(sar_number_columns)(I *restrict columns, const I *restrict place, int64_t n_columns);
int NAME(sar_number_end)(uint64_t *restrict members, const I *restrict rows, int64_t n_rows);
