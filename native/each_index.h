/* Includes KERNEL once for each value type T and index type I. NAME(op) is op_f32_i32_<isa>, ...; LANES and
 * FLOAT_BITS are those of each_float.h. */
#define NAME(op) SAR_PASTE(op, SUFFIX, ISA)

#define T float
#define LANES 16
#define FLOAT_BITS 32
#define I int32_t
#define SUFFIX _f32_i32
#include KERNEL
#undef I
#undef SUFFIX
#define I int64_t
#define SUFFIX _f32_i64
#include KERNEL
#undef I
#undef SUFFIX
#undef T
#undef LANES
#undef FLOAT_BITS

#define T double
#define LANES 8
#define FLOAT_BITS 64
#define I int32_t
#define SUFFIX _f64_i32
#include KERNEL
#undef I
#undef SUFFIX
#define I int64_t
#define SUFFIX _f64_i64
#include KERNEL
#undef I
#undef SUFFIX
#undef T
#undef LANES
#undef FLOAT_BITS

#undef NAME
#undef KERNEL
