/* Includes KERNEL once for each index type I, where no values take part. NAME(op) is op_i32_<isa> or op_i64_<isa>. */
#define NAME(op) SAR_PASTE(op, SUFFIX, ISA)

#define I int32_t
#define SUFFIX _i32
#include KERNEL
#undef I
#undef SUFFIX
#define I int64_t
#define SUFFIX _i64
#include KERNEL
#undef I
#undef SUFFIX

#undef NAME
#undef KERNEL
