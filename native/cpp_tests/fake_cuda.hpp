// A test double of NVIDIA's driver: device memory is memfd, streams are threads. It checks what the real one checks
// (alignment, contexts, what is mapped and accessible) and can be set to fail or to hold its streams.
#pragma once

extern "C" {

struct FakeLive {
  int contexts, modules, handles, mappings, reservations, locked, streams, events;
};

FakeLive fake_live();
// The call after `skip` further ones to `name` fails with `code`, once.
void fake_fail(const char* name, int code, int skip);
// While held, streams start nothing new.
void fake_hold(bool held);
// How often a call was made since the start.
int fake_calls(const char* name);

}  // extern "C"
