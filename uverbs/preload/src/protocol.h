/* The records between this library and the daemon, and the memfd: ../../protocol.go has the
 * description. The names are the same; a test compares the values. */
#ifndef PROTOCOL_H
#define PROTOCOL_H

#define kindHello    1
#define kindCommand  2
#define kindDoorbell 3
#define kindClosed   4
#define kindPresent  5
#define kindUnstored 6

#define argFork 1

#define Version 3

#define headLen   16
#define answerLen 32
#define noFD      0xFFFFFFFF
#define maxHint   400
#define maxRecord (16 << 10)

#define helloLen 16

#define stateOff   4096
#define armOff     65536
#define maxStates  (armOff - stateOff)
#define arenaOff   311296
#define stateShut  0
#define stateOpen  1
#define stateQuiet 2
#define stateCQ    3
#define lockExtent 64

#define armNone      0
#define armSolicited 1
#define armAny       2

#endif
