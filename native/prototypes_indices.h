/* Kernels for each I; outputs, inputs, sizes. build.py reads this file for cffi. */
int NAME(sar_sample_counts)(int64_t *restrict out_indptr, const int64_t *restrict indptr, const uint8_t *restrict loops,
                            const I *restrict rows, int64_t k, int kind, int64_t n_rows);
int NAME(sar_sample)(I *restrict sources, I *restrict positions, uint64_t *restrict seen, uint64_t *restrict summary,
                     uint64_t *restrict workspace, const int64_t *restrict out_indptr, const int64_t *restrict indptr,
                     const I *restrict indices, const uint8_t *restrict loops, const int64_t *restrict dst_ids,
                     const int64_t *restrict src_ids, const I *restrict rows, int64_t k, int kind, uint64_t key,
                     int64_t n_words, int64_t n_workspace, int64_t n_threads, int64_t n_rows);
int NAME(sar_number_seeds)(I *restrict rows, int64_t *restrict numbers, int64_t *restrict n_rows, uint64_t *restrict members,
                           I *restrict place, const I *restrict seeds, int64_t n_seeds);
int NAME(sar_number_count)(int64_t *restrict counts, uint64_t *restrict seen, uint64_t *restrict summary,
                           const uint64_t *restrict members, int64_t n_parts, int64_t n_threads, int64_t n_words);
int NAME(sar_number_join)(I *restrict rows, uint64_t *restrict members, uint64_t *restrict seen, uint64_t *restrict summary,
                          I *restrict place, const int64_t *restrict starts, int64_t first, int64_t n_parts, int64_t n_words);
int NAME(sar_number_columns)(I *restrict columns, const I *restrict place, int64_t n_columns);
int NAME(sar_number_end)(uint64_t *restrict members, const I *restrict rows, int64_t n_rows);
