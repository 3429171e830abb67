/* Types, constants and kernels that are the same for every value type and instruction set. build.py reads this file for
 * cffi. */
enum sar_isa { SAR_PORTABLE, SAR_AVX2, SAR_AVX512 };

enum sar_status { SAR_OK = 0, SAR_INDEX_OUT_OF_BOUNDS = 1, SAR_LABEL_OUT_OF_BOUNDS = 2, SAR_DEGREE_TOO_LARGE = 4 };

/* How in-edges are picked; all of them is SAR_UNIFORM with a k that no row exceeds. */
enum sar_sampler { SAR_UNIFORM, SAR_REPLACE, SAR_LABOR };

/* Of dense products: how many a sum takes before it is added to memory; the rows of a block of a; the columns of a
 * panel of b at most; the values of a thread's panel and block. */
enum sar_gemm { SAR_GEMM_DEPTH = 256, SAR_GEMM_BLOCK = 126, SAR_GEMM_COLUMNS = 32,
                SAR_GEMM_OWN = SAR_GEMM_DEPTH * (SAR_GEMM_COLUMNS + SAR_GEMM_BLOCK) };

/* Of exact products: rows that are packed at a time; rows of a block of a row product; by how much rows and columns may be
 * rounded up to whole tiles. */
enum sar_exact { SAR_EXACT_DEPTH = 128, SAR_EXACT_PAD = 16 };

/* Dropout of values: a row's id, and a key of the generator; p in [0, 1). Without ids nothing is dropped. */
struct sar_dropout {
    const int64_t *ids;     /* (n_rows): global ids */
    uint64_t key;
    double p;
};

/* Dropout of attention's coefficients: the edge j -> i has the id src_ids[j] * n_nodes + dst_ids[i]. Without ids
 * nothing is dropped. */
struct sar_edge_dropout {
    const int64_t *src_ids, *dst_ids;   /* (n_src), (n_out): global node ids */
    uint64_t n_nodes, key;
    double p;
};

/* A line of a cache, or the head of the ring that they stand in; see cache.c. */
struct sar_line {
    int64_t made;           /* the step in which its row was made */
    int32_t halo;           /* number of its row */
    int32_t older, newer;   /* lines beside it */
    int32_t end;            /* of the first or last line of one `made`: the other */
};

int sar_threads(void);
int sar_set_threads(int n_threads);
int sar_can_run(int isa);
int64_t sar_last_cache(void);
struct sar_buffers;
struct sar_buffers *sar_buffers_open(void);
void sar_buffers_trim(struct sar_buffers *b);
void sar_buffers_close(struct sar_buffers *b);
void sar_buffers_end(void *capsule);
int64_t sar_buffers_fresh(const struct sar_buffers *b);
int64_t sar_buffers_bytes(const struct sar_buffers *b);

int sar_philox4x32(uint32_t *restrict out, const uint32_t *restrict counter, const uint32_t *restrict key);
int sar_narrow_forward(uint16_t *restrict out, const float *restrict x, const float *restrict scale, int64_t n_rows,
                       int64_t n_feat);
int sar_widen_forward(float *restrict out, const uint16_t *restrict x, int64_t n);
int sar_quantize_forward(int8_t *restrict out, const float *restrict x, int64_t n_rows, int64_t n_feat);
int sar_dequantize_forward(float *restrict out, const int8_t *restrict x, int64_t n_rows, int64_t n_feat);
int sar_transpose_i32(int64_t *restrict t_indptr, int32_t *restrict t_indices, int32_t *restrict position,
                      const int64_t *restrict indptr, const int32_t *restrict indices, const int32_t *restrict rows,
                      int64_t n_dst, int64_t n_src);
int sar_transpose_i64(int64_t *restrict t_indptr, int64_t *restrict t_indices, int64_t *restrict position,
                      const int64_t *restrict indptr, const int64_t *restrict indices, const int64_t *restrict rows,
                      int64_t n_dst, int64_t n_src);
int sar_cache_clear(struct sar_line *restrict lines, int32_t *restrict place, int64_t n_lines, int64_t n_halo);
int sar_cache_store(int32_t *restrict taken, struct sar_line *restrict lines, int32_t *restrict place, const int32_t *restrict halo,
                    const int64_t *restrict made, int64_t n_lines, int64_t n);
int sar_cache_write(uint8_t *restrict rows, const uint8_t *restrict from, const int32_t *restrict taken, int64_t n, int64_t row_bytes);
int sar_cache_lookup(int32_t *restrict found, const struct sar_line *restrict lines, const int32_t *restrict place,
                     const int32_t *restrict halo, int64_t now, int64_t life, int64_t n);
int sar_cache_order(int32_t *restrict order, int64_t *restrict n, const struct sar_line *restrict lines, int64_t n_lines);
