/* A stand-in for libnvidia-ml.so.1, driven by a text file that is read again on every call.
 *
 *   gcc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o DIR/libnvidia-ml.so.1 fake.c
 *   LD_LIBRARY_PATH=DIR FAKE_NVML_CTL=control.txt corral-agent --gpus nvml ...
 *
 * Control file: one order a line, the last that fits wins; N is a GPU number or *.
 *   count 4                    how many GPUs
 *   init 18                    nvmlInit answers this code (9 no driver, 18 version mismatch)
 *   version 590.48.01          driver version          cuda 13010
 *   name N TEXT   uuid N TEXT  identity
 *   util N GPU [MEM]           percent                 mem N USED_MIB [TOTAL_MIB]
 *   power N MILLIWATT          temp N CELSIUS          clock N MHZ
 *   fan N PERCENT              energy N MILLIJOULE     throttle N BITS (0x.. or decimal)
 *   na N FIELD                 that field answers NotSupported
 *   error N FIELD CODE         that field answers CODE; FIELD `all` means every call on the GPU
 *   lost N                     every call answers GpuIsLost
 *   hang N                     every call blocks until the line is gone
 *   mig N                      MIG mode, with slices of 40448, 20096 and 9984 MiB (index 1 is a gap)
 *   migmode N VALUE            MIG mode as a raw number
 *   xid N CODE                 one event per line that is added while the driver is open
 *   proc N PID MIB             a compute process; PID and MIB may be any number, -1 is the sentinel
 *   recovery N ACTION          field 230
 * FIELD: name uuid pci util mem power temp clock fan throttle energy mig procs events fields
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
enum { OK, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT = 7, TIMEOUT = 10, LOST = 15 };
#define MIB (1024ULL * 1024)
#define SLICE_BASE 1000 /* a slice's handle is SLICE_BASE * (slot + 1) + gpu + 1 */

/* Find the last line `key gpu rest`; gpu -1 means a line without a GPU number. */
static int find_nth(const char *key, int gpu, char *rest, int nth) {
  const char *path = getenv("FAKE_NVML_CTL");
  FILE *file = path ? fopen(path, "r") : NULL;
  char line[512], word[64], who[64];
  int found = 0;
  while (file && fgets(line, sizeof line, file)) {
    int used = 0;
    if (sscanf(line, "%63s", word) != 1 || strcmp(word, key)) continue;
    if (gpu < 0) {
      if (sscanf(line, "%*s %n", &used) < 0) continue;
    } else {
      if (sscanf(line, "%*s %63s %n", who, &used) != 1) continue;
      if (strcmp(who, "*") && atoi(who) != gpu) continue;
    }
    if (rest) {
      strncpy(rest, line + used, 255);
      rest[255] = 0;
      rest[strcspn(rest, "\r\n")] = 0;
    }
    if (++found == nth) break;
  }
  if (file) fclose(file);
  return found;
}
static int find(const char *key, int gpu, char *rest) { return find_nth(key, gpu, rest, -1); }
static u64 number(const char *key, int gpu, u64 otherwise) {
  char rest[256];
  return find(key, gpu, rest) ? strtoull(rest, NULL, 0) : otherwise;
}

static int gpu_of(void *handle) { return (int)((intptr_t)handle % SLICE_BASE) - 1; }
static int slot_of(void *handle) { return (int)((intptr_t)handle / SLICE_BASE) - 1; } /* -1: whole */

/* Every call on a GPU passes here: hang, lost, N/A and errors are decided in one place. */
static int gate(int gpu, const char *field) {
  char rest[256], name[64];
  int code = 0, i, n;
  while (find("hang", gpu, NULL)) usleep(10000);
  if (find("lost", gpu, NULL)) return LOST;
  n = find("na", gpu, NULL);
  for (i = 1; i <= n; i++)
    if (find_nth("na", gpu, rest, i) && sscanf(rest, "%63s", name) == 1 && !strcmp(name, field))
      return NOT_SUPPORTED;
  n = find("error", gpu, NULL);
  for (i = 1; i <= n; i++)
    if (find_nth("error", gpu, rest, i) && sscanf(rest, "%63s %d", name, &code) == 2 &&
        (!strcmp(name, field) || !strcmp(name, "all")))
      return code;
  return OK;
}
static int has_mig(int gpu) { return number("migmode", gpu, find("mig", gpu, NULL) ? 1 : 0) == 1; }
#define GATE(handle, field)                  \
  int gpu = gpu_of(handle);                  \
  int code = gate(gpu, field);               \
  if (code) return code;                     \
  (void)gpu
#define WHOLE_ONLY(handle) \
  if (slot_of(handle) >= 0) return NOT_SUPPORTED

int nvmlInitWithFlags(u32 flags) { (void)flags; return (int)number("init", -1, OK); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error the fake was told to answer"; }
int nvmlSystemGetDriverVersion(char *out, u32 size) {
  char rest[256] = "590.48.01";
  find("version", -1, rest);
  snprintf(out, size, "%s", rest);
  return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = (int)number("cuda", -1, 13010); return OK; }
int nvmlDeviceGetCount_v2(u32 *out) { *out = (u32)number("count", -1, 0); return OK; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, void **out) {
  *out = (void *)(intptr_t)(index + 1);
  return gate((int)index, "handle");
}
int nvmlDeviceGetUUID(void *h, char *out, u32 size) {
  char rest[256];
  GATE(h, "uuid");
  if (slot_of(h) >= 0)
    snprintf(out, size, "MIG-%08d-0000-4000-8000-%012d", slot_of(h), gpu);
  else if (find("uuid", gpu, rest))
    snprintf(out, size, "%s", rest);
  else
    snprintf(out, size, "GPU-%08d-0000-4000-8000-000000000000", gpu);
  return OK;
}
int nvmlDeviceGetName(void *h, char *out, u32 size) {
  char rest[256] = "NVIDIA H100 80GB HBM3";
  GATE(h, "name");
  if (slot_of(h) >= 0)
    strcat(rest, slot_of(h) == 0 ? " MIG 3g.40gb" : slot_of(h) == 2 ? " MIG 2g.20gb" : " MIG 1g.10gb");
  else
    find("name", gpu, rest);
  snprintf(out, size, "%s", rest);
  return OK;
}
struct pci { char legacy[16]; u32 domain, bus, device, id, sub; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *h, struct pci *out) {
  GATE(h, "pci");
  WHOLE_ONLY(h);
  memset(out, 0, sizeof *out);
  out->bus = (u32)gpu + 9;
  out->id = 0x233010de;
  snprintf(out->bus_id, 32, "00000000:%02X:00.0", gpu + 9);
  return OK;
}
struct memory { u32 version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *h, struct memory *out) {
  char rest[256];
  u64 used = 0, total = 81559;
  int slot = slot_of(h);
  GATE(h, "mem");
  if (slot >= 0) {
    out->total = (slot == 0 ? 40448 : slot == 2 ? 20096 : 9984) * MIB;
    out->used = 17 * MIB;
  } else {
    if (find("mem", gpu, rest)) sscanf(rest, "%llu %llu", &used, &total);
    out->total = total * MIB;
    out->used = used * MIB;
  }
  out->reserved = 479 * MIB;
  out->free = out->total - out->used;
  return OK;
}
struct utilization { u32 gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *h, struct utilization *out) {
  char rest[256];
  GATE(h, "util");
  WHOLE_ONLY(h);
  if (has_mig(gpu)) return NOT_SUPPORTED;
  out->gpu = out->memory = 0;
  if (find("util", gpu, rest)) sscanf(rest, "%u %u", &out->gpu, &out->memory);
  return OK;
}
#define SCALAR(symbol, type, field, key, otherwise) \
  int symbol(void *h, type *out) {                  \
    GATE(h, field);                                 \
    WHOLE_ONLY(h);                                  \
    *out = (type)number(key, gpu, otherwise);       \
    return OK;                                      \
  }
SCALAR(nvmlDeviceGetPowerUsage, u32, "power", "power", 69850)
SCALAR(nvmlDeviceGetFanSpeed, u32, "fan", "fan", 38)
SCALAR(nvmlDeviceGetTotalEnergyConsumption, u64, "energy", "energy", 123456789)
SCALAR(nvmlDeviceGetCurrentClocksEventReasons, u64, "throttle", "throttle", 0)
int nvmlDeviceGetTemperature(void *h, u32 sensor, u32 *out) {
  (void)sensor;
  GATE(h, "temp");
  WHOLE_ONLY(h);
  *out = (u32)number("temp", gpu, 41);
  return OK;
}
int nvmlDeviceGetClockInfo(void *h, u32 kind, u32 *out) {
  (void)kind;
  GATE(h, "clock");
  WHOLE_ONLY(h);
  *out = (u32)number("clock", gpu, 1980);
  return OK;
}
int nvmlDeviceGetMigMode(void *h, u32 *current, u32 *pending) {
  GATE(h, "mig");
  *current = *pending = (u32)number("migmode", gpu, find("mig", gpu, NULL) ? 1 : 0);
  return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void *h, u32 *out) {
  GATE(h, "mig");
  *out = 7;
  return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, u32 slot, void **out) {
  GATE(h, "mig");
  if (!has_mig(gpu) || slot == 1 || slot > 4) return NOT_FOUND; /* real indexes have gaps too */
  *out = (void *)(intptr_t)(SLICE_BASE * (slot + 1) + gpu + 1);
  return OK;
}
struct process { u32 pid; u64 memory; u32 gi, ci; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, u32 *count, struct process *out) {
  char rest[256];
  long long pid, mib;
  int i, n;
  GATE(h, "procs");
  n = slot_of(h) >= 0 ? 0 : find("proc", gpu, NULL);
  if ((int)*count < n) { *count = (u32)n; return INSUFFICIENT; }
  for (i = 0; i < n; i++) {
    find_nth("proc", gpu, rest, i + 1);
    pid = mib = 0;
    sscanf(rest, "%lld %lld", &pid, &mib);
    out[i].pid = (u32)pid;
    out[i].memory = mib < 0 ? ~0ULL : (u64)mib * MIB;
    out[i].gi = out[i].ci = 0xFFFFFFFF;
  }
  *count = (u32)n;
  return OK;
}
struct field { uint32_t id, scope; int64_t at, latency; u32 type; int code; union { u64 u; double d; } value; };
int nvmlDeviceGetFieldValues(void *h, int count, struct field *out) {
  int i;
  GATE(h, "fields");
  for (i = 0; i < count; i++) {
    out[i].code = out[i].id == 230 ? OK : NOT_SUPPORTED;
    out[i].type = 1; /* unsigned int */
    out[i].value.u = number("recovery", gpu, 0);
  }
  return OK;
}
struct event { void *device; u64 type, data; u32 gi, ci; };
static int told = 0; /* how many xid lines have been delivered */
int nvmlEventSetCreate(void **out) {
  *out = (void *)1;
  told = find("xid", -1, NULL); /* what happened before is not told */
  return OK;
}
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(void *h, u64 types, void *set) {
  (void)types; (void)set;
  GATE(h, "events");
  return OK;
}
int nvmlEventSetWait_v2(void *set, struct event *out, u32 milliseconds) {
  char rest[256];
  int lines = find("xid", -1, NULL), gpu = 0;
  u64 xid = 0;
  (void)set;
  if (lines < told) told = lines;
  if (lines == told) { usleep(milliseconds * 1000); return TIMEOUT; }
  find_nth("xid", -1, rest, ++told);
  sscanf(rest, "%d %llu", &gpu, &xid);
  memset(out, 0, sizeof *out);
  out->device = (void *)(intptr_t)(gpu + 1);
  out->type = 8;
  out->data = xid;
  return OK;
}
