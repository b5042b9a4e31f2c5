// CRC-32 with zlib's polynomial, as binascii.crc32 computes it.
#ifndef MOETIER_CRC32_H
#define MOETIER_CRC32_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32_of(const void *bytes, size_t length);

#endif
