/* TILEWISE_EXPORT marks what the shared library shows; everything else in it is hidden. */
#ifndef TILEWISE_EXPORT_H_
#define TILEWISE_EXPORT_H_

#if defined(__GNUC__)
#define TILEWISE_EXPORT __attribute__((visibility("default")))
#else
#define TILEWISE_EXPORT
#endif

#endif
