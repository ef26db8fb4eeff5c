// A test double of NVIDIA's driver with two GPUs: device memory is memfd, streams are threads. It checks what the real
// one checks (alignment, whose context is current, what is mapped and accessible to whom, what can be page-locked) and
// can be set to fail, to lack what a GPU may lack, and to run its streams in the worst order that CUDA allows.
#pragma once

#include <cstddef>

extern "C" {

struct FakeLive {
  int contexts, handles, mappings, reservations, locked, streams, events;
};

FakeLive fake_live();
// The call after `skip` further ones to `name` fails with `code`, once. A sticky code is the last that its GPU says.
void fake_fail(const char* name, int code, int skip);
// A process that finds the name of a file in the environment, FAKE_CUDA_RULES, begins with its lines: "CALL CODE SKIP".
// While held, streams start nothing new.
void fake_hold(bool held);
// Streams start nothing before a thread waits for it: what is read, unmapped or overwritten without a wait shows.
void fake_late(bool late);
// How often a call was made since the start.
int fake_calls(const char* name);
// An attribute of cuDeviceGetAttribute as another GPU has it.
void fake_attribute(int device, int which, int value);
// The unit of a GPU's memory, 2 MiB by default.
void fake_granularity(int device, std::size_t bytes);
// So much of a GPU's memory (1 GiB) is taken by others: by torch, and by other processes.
void fake_take(int device, std::size_t bytes);
// The largest piece of memory that one call has page-locked: no mmap of the process gets through meanwhile.
std::size_t fake_longest_lock();
// Bytes copied from or to host memory that is not page-locked: by way of the driver's own buffers, while the caller
// waits.
std::size_t fake_pageable();
// The most bytes that one stream has copied without running empty: a copy engine serves no other stream meanwhile.
std::size_t fake_longest_burst();
// Everything above as at the start. What lives stays.
void fake_reset();

}  // extern "C"
