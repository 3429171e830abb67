/* Declarations that every kernel shares: status codes, instruction sets, the partition of rows among threads.
 *
 * Words: indptr, indices, eid name a CSR whose rows are destinations; n_dst, n_src, n_edges, n_heads, n_feat are its sizes.
 * d<name> is the gradient of <name>. T is the value type (float, double), I the index type (int32_t, int64_t).
 * A backward kernel and every sum ACCUMULATES into its output unless its comment says that it overwrites.
 * Arrays are C-contiguous; the checks stand in sarlite/kernels/, above the kernels.
 */
#ifndef SARLITE_H
#define SARLITE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* The instruction sets that kernels are compiled for; ISA is the suffix of one: _portable, _avx2, _avx512. */
enum sar_isa { SAR_PORTABLE, SAR_AVX2, SAR_AVX512 };

enum sar_status { SAR_OK = 0, SAR_INDEX_OUT_OF_BOUNDS = 1, SAR_LABEL_OUT_OF_BOUNDS = 2, SAR_DEGREE_TOO_LARGE = 4 };

/* How in-edges are picked; all of them is SAR_UNIFORM with a k that no row exceeds. */
enum sar_sampler { SAR_UNIFORM, SAR_REPLACE, SAR_LABOR };

/* Of dense products: how many a sum takes before it is added to memory; the rows of a block of a; the columns of a panel of b at most; the
 * values of a thread's panel and block. */
enum sar_gemm { SAR_GEMM_DEPTH = 256, SAR_GEMM_BLOCK = 126, SAR_GEMM_COLUMNS = 32,
                SAR_GEMM_OWN = SAR_GEMM_DEPTH * (SAR_GEMM_COLUMNS + SAR_GEMM_BLOCK) };

/* A line of a cache, or the head of the ring that they stand in; see cache.c. */
struct sar_line {
    int64_t made;               /* the step in which its row was made */
    int32_t halo;               /* number of its row */
    int32_t older, newer;       /* lines beside it */
    int32_t end;                /* of the first or last line of one `made`: the other */
};

/* SAR_INLINE: a helper that must be compiled for the instruction set of its caller. */
#if defined(__GNUC__)
#define SAR_INLINE static inline __attribute__((always_inline))
#define SAR_PREFETCH(address) __builtin_prefetch(address, 0, 2)         /* into the second-level cache */
#define SAR_PREFETCH_NEAR(address) __builtin_prefetch(address, 0, 3)    /* into the first */
#define SAR_PREFETCH_OUT(address) __builtin_prefetch(address, 1, 3)     /* into the first, to be written */
#else
#define SAR_INLINE static inline
#define SAR_PREFETCH(address) ((void)(address))
#define SAR_PREFETCH_NEAR(address) ((void)(address))
#define SAR_PREFETCH_OUT(address) ((void)(address))
#endif

#define SAR_PASTE_(a, b, c) a##b##c
#define SAR_PASTE(a, b, c) SAR_PASTE_(a, b, c)

/* Below this many multiply-adds the start of a thread team costs more than the work. */
#define SAR_SERIAL_WORK 32768

/* Ranges of rows that a thread takes one after another where their costs are uneven. */
#define SAR_PARTS 32

/* Threads for `work` multiply-adds: a function of the work and of the caller's setting only. */
static inline int sar_team(int64_t work)
{
#ifdef _OPENMP
    return work < SAR_SERIAL_WORK ? 1 : omp_get_max_threads();
#else
    (void)work;
    return 1;
#endif
}

static inline int sar_team_size(void)
{
#ifdef _OPENMP
    return omp_get_num_threads();
#else
    return 1;
#endif
}

static inline int sar_team_rank(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* First of n equal items that part `part` of `n_parts` owns. */
static inline int64_t sar_split(int64_t n, int64_t part, int64_t n_parts)
{
    return n / n_parts * part + n % n_parts * part / n_parts;
}

/* First row that part `part` of `n_parts` owns when a row costs its edges plus one: binary search in indptr[i] + i.
 * Rows of power-law graphs differ by orders of magnitude, so equal numbers of rows would not be equal work. */
static inline int64_t sar_split_rows(const int64_t *indptr, int64_t n_rows, int64_t part, int64_t n_parts)
{
    int64_t goal = sar_split(indptr[n_rows] - indptr[0] + n_rows, part, n_parts);
    int64_t low = 0, high = n_rows;
    if (part == n_parts) return n_rows;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (indptr[middle] - indptr[0] + middle < goal) low = middle + 1;
        else high = middle;
    }
    return low;
}

int sar_threads(void);
int sar_set_threads(int n_threads);
int sar_can_run(int isa);
int64_t sar_last_cache(void);
int sar_transpose_i32(int64_t *restrict t_indptr, int32_t *restrict t_indices, int32_t *restrict position,
                      const int64_t *restrict indptr, const int32_t *restrict indices, const int32_t *restrict rows,
                      int64_t n_dst, int64_t n_src);
int sar_transpose_i64(int64_t *restrict t_indptr, int64_t *restrict t_indices, int64_t *restrict position,
                      const int64_t *restrict indptr, const int64_t *restrict indices, const int64_t *restrict rows,
                      int64_t n_dst, int64_t n_src);
int sar_philox4x32(uint32_t *restrict out, const uint32_t *restrict counter, const uint32_t *restrict key);
int sar_cache_clear(struct sar_line *restrict lines, int32_t *restrict place, int64_t n_lines, int64_t n_halo);
int sar_cache_store(int32_t *restrict taken, struct sar_line *restrict lines, int32_t *restrict place, const int32_t *restrict halo,
                    const int64_t *restrict made, int64_t n_lines, int64_t n);
int sar_cache_write(uint8_t *restrict rows, const uint8_t *restrict from, const int32_t *restrict taken, int64_t n, int64_t row_bytes);
int sar_cache_lookup(int32_t *restrict found, const struct sar_line *restrict lines, const int32_t *restrict place,
                     const int32_t *restrict halo, int64_t now, int64_t life, int64_t n);
int sar_cache_order(int32_t *restrict order, int64_t *restrict n, const struct sar_line *restrict lines, int64_t n_lines);

#endif
