/* Includes KERNEL once for each value type T and index type I. NAME(op) is op_f32_i32_<isa>, ...; LANES and
 * FLOAT_BITS are those of each_float.h; INDEX_BITS is 32 or 64. Rows that edges gather are of S, which is T; where
 * KERNEL is ALSO_BFLOAT16 once more of bfloat16, as op_bf16_i32_<isa>, with BFLOAT16; a part of 2^31 rows or edges is too
 * large for narrow rows. */
#define NAME(op) SAR_PASTE(op, SUFFIX, ISA)

#define T float
#define S float
#define LANES 16
#define FLOAT_BITS 32
#define I int32_t
#define INDEX_BITS 32
#define SUFFIX _f32_i32
#include KERNEL
#undef I
#undef INDEX_BITS
#undef SUFFIX
#define I int64_t
#define INDEX_BITS 64
#define SUFFIX _f32_i64
#include KERNEL
#undef I
#undef INDEX_BITS
#undef SUFFIX
#undef T
#undef S
#undef LANES
#undef FLOAT_BITS

#define T double
#define S double
#define LANES 8
#define FLOAT_BITS 64
#define I int32_t
#define INDEX_BITS 32
#define SUFFIX _f64_i32
#include KERNEL
#undef I
#undef INDEX_BITS
#undef SUFFIX
#define I int64_t
#define INDEX_BITS 64
#define SUFFIX _f64_i64
#include KERNEL
#undef I
#undef INDEX_BITS
#undef SUFFIX
#undef T
#undef S
#undef LANES
#undef FLOAT_BITS

#ifdef ALSO_BFLOAT16
#define BFLOAT16
#define T float
#define S uint16_t
#define LANES 16
#define FLOAT_BITS 32
#define I int32_t
#define INDEX_BITS 32
#define SUFFIX _bf16_i32
#include KERNEL
#undef I
#undef INDEX_BITS
#undef SUFFIX
#undef T
#undef S
#undef LANES
#undef FLOAT_BITS
#undef BFLOAT16
#undef ALSO_BFLOAT16
#endif

#undef NAME
#undef KERNEL
