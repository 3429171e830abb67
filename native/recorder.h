/* See recorder.c. */
#ifndef SARLITE_RECORDER_H
#define SARLITE_RECORDER_H

#include "buffers.h"

struct sar_recorder;
struct sar_recorder *sar_recorder_open(void);
void sar_recorder_close(struct sar_recorder *r);
void sar_recorder_end(void *capsule);
int64_t sar_recorder_count(struct sar_recorder *r);
int64_t sar_recorder_take(struct sar_recorder *r, int64_t *events, int64_t room);

#endif
