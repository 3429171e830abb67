/* The number of OpenMP threads of the calling thread's kernels (1 without OpenMP), the size of the last-level cache, and
 * the instruction sets that the processor supports. */
#include "sarlite.h"
#include <unistd.h>

int sar_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

int sar_set_threads(int n_threads)
{
#ifdef _OPENMP
    omp_set_num_threads(n_threads);
#else
    (void)n_threads;
#endif
    return SAR_OK;
}

/* The size of the last-level cache in bytes; 32 MiB if the system does not report it. The system is asked once, because
 * the call is slow in a virtual machine. */
int64_t sar_last_cache(void)
{
    static _Atomic int64_t known;
    int64_t bytes = known;
    if (bytes) return bytes;
#ifdef _SC_LEVEL3_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    if (bytes <= 0) bytes = 32 << 20;
    return known = bytes;
}

/* Return 1 if the processor and the operating system can run the kernels of an instruction set, else 0. */
int sar_can_run(int isa)
{
#if defined(__x86_64__) && defined(__GNUC__)
#ifdef SAR_AVX512_AS_AVX2       /* see build.py */
    if (isa == SAR_AVX512) isa = SAR_AVX2;
#endif
    if (isa == SAR_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")
               && __builtin_cpu_supports("avx512vl");
    if (isa == SAR_AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return isa == SAR_PORTABLE;
}
