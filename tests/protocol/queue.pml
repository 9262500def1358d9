/*
 * The protocol of the queue: register, claim, heartbeat, complete, expire, and the turn of an identifier.
 *
 * Two tasks of one identifier. Task 1 is there from the start, and task 0, of a higher priority, is pushed at any moment.
 * Two programs of the name A, of which the second replaces the first while that one may still run, and one program of
 * the name B. A lease may lapse at any moment, and a program of the name A may be killed at any moment. A statement of
 * SQL is atomic and sees what was committed. A transaction keeps its locks until it ends.
 *
 * Spin searches all interleavings. Variables that are not needed any more are reset, so that states which differ only in
 * them are one state. Each name below, if it is defined, takes one rule out of the protocol. Then
 * the search has to find an error:
 *
 *     NO_FENCE            a completion compares the name of the owner, and not the fence of its registration
 *     NO_OWNER_LOCK       a poll and a completion compare the fence, and do not lock the owner until they commit
 *     NO_HOLDER           a completion does not look whether the owner still holds the task
 *     NO_IDENTIFIER_LOCK  a poll does not lock the identifier
 *     NO_SECOND_LOOK      a poll does not look again after it has locked the identifier
 *     NO_LAPSE_CHECK      an expiry does not look again whether the lease has lapsed, after it has locked the owner
 *     NO_EXPIRY           nothing ends lapsed leases
 */

#define TASKS 2
#define NAMES 2    /* A and B */
#define LAPSES 2   /* how often a lease lapses in a run while its program is alive */
#define NONE 255

mtype = { ABSENT, READY, ACTIVE, ENDED };

/* What was committed. */
mtype state[TASKS] = ABSENT;
byte holder[TASKS] = NONE;  /* the name of the owner that holds the task */
byte fence[NAMES];          /* the fence of the latest registration of a name; 0 before the first one */
bool leased[NAMES];         /* the registration has a lease, lapsed or not */
bool lapsed[NAMES];

/* Locks until the end of a transaction. */
byte task_lock[TASKS] = NONE;    /* FOR UPDATE: the process, or NONE */
byte identifier_lock = NONE;
byte owner_shares[NAMES];        /* FOR KEY SHARE: how many processes */
byte owner_lock[NAMES] = NONE;   /* FOR UPDATE */

/* What only the rules read. */
byte effects[TASKS];
byte working;                    /* programs that may still claim */
byte lapses;

#define is_free(t) (task_lock[t] == NONE || task_lock[t] == _pid)
#define is_current(name, mine) (leased[name] && fence[name] == mine)

/* A registration replaces the one before of its name. It waits for the transactions that use the owner. */
inline register(name, mine) {
    atomic {
        owner_lock[name] == NONE && owner_shares[name] == 0 ->
        fence[name] = fence[name] + 1;
        mine = fence[name];
        leased[name] = true;
        lapsed[name] = false
    }
}

/* The first task that a name holds, or NONE. */
inline find_held(name, mine, task) {
    atomic {
        task = NONE;
        if
        :: is_current(name, mine) && state[0] == ACTIVE && holder[0] == name -> task = 0
        :: is_current(name, mine) && state[1] == ACTIVE && holder[1] == name -> task = 1
        :: else -> skip
        fi
    }
}

/* The READY task that has the turn, or NONE: an ACTIVE task blocks the identifier. */
inline find_turn(turn) {
    atomic {
        turn = NONE;
        if
        :: state[0] == ACTIVE || state[1] == ACTIVE -> skip
        :: state[0] == READY && state[1] != ACTIVE -> turn = 0
        :: (state[0] == ENDED || state[0] == ABSENT) && state[1] == READY -> turn = 1
        :: (state[0] == ENDED || state[0] == ABSENT) && state[1] == ENDED -> skip
        fi
    }
}

/* Locks the owner FOR KEY SHARE SKIP LOCKED, if the registration is current. */
inline share_owner(name, mine, got) {
    atomic {
        got = false;
        if
#ifdef NO_FENCE
        :: leased[name] && owner_lock[name] == NONE -> got = true; owner_shares[name] = owner_shares[name] + 1
        :: !leased[name] || owner_lock[name] != NONE -> skip
#else
#ifdef NO_OWNER_LOCK
        :: is_current(name, mine) -> got = true
        :: !is_current(name, mine) -> skip
#else
        :: is_current(name, mine) && owner_lock[name] == NONE -> got = true; owner_shares[name] = owner_shares[name] + 1
        :: !is_current(name, mine) || owner_lock[name] != NONE -> skip
#endif
#endif
        fi
    }
}

inline unshare_owner(name) {
#ifndef NO_OWNER_LOCK
    owner_shares[name] = owner_shares[name] - 1
#else
    skip
#endif
}

/* A poll of one task: lock the owner, find the turn, lock its identifier, look again, and claim. */
inline poll(name, mine, task, got, was_ready) {
    task = NONE;
    was_ready = (state[0] == READY);
    share_owner(name, mine, got);
    if
    :: got ->
        find_turn(task);
#ifndef NO_IDENTIFIER_LOCK
        atomic {
            if
            :: task != NONE && identifier_lock == NONE -> identifier_lock = _pid
            :: task != NONE && identifier_lock != NONE -> task = NONE
            :: task == NONE -> skip
            fi
        };
#ifndef NO_SECOND_LOOK
        if
        :: task != NONE -> find_turn(task)
        :: else -> skip
        fi;
#endif
#endif
        atomic {                                                     /* FOR UPDATE SKIP LOCKED of a READY task */
            if
            :: task != NONE && is_free(task) && state[task] == READY -> task_lock[task] = _pid
            :: task != NONE && (!is_free(task) || state[task] != READY) -> task = NONE
            :: task == NONE -> skip
            fi
        };
        atomic {                                                     /* commit */
            if
            :: task != NONE ->
                assert(task == 0 || !was_ready || state[0] != READY); /* no task overtakes one of its identifier */
                assert(state[1 - task] != ACTIVE);                   /* one task of the identifier at a time */
                state[task] = ACTIVE;
                holder[task] = name;
                task_lock[task] = NONE
            :: else -> skip
            fi;
            if
            :: identifier_lock == _pid -> identifier_lock = NONE
            :: else -> skip
            fi;
            unshare_owner(name);
            got = false;
            was_ready = false
        }
    :: else -> was_ready = false
    fi
}

/* A completion: lock the owner, lock the task, and commit the decision with its effect. */
inline complete(name, mine, task, got) {
    share_owner(name, mine, got);
    if
    :: got ->
        atomic {
            if
#ifdef NO_HOLDER
            :: is_free(task) -> task_lock[task] = _pid
#else
            :: is_free(task) && state[task] == ACTIVE && holder[task] == name -> task_lock[task] = _pid
            :: is_free(task) && (state[task] != ACTIVE || holder[task] != name) -> got = false
#endif
            fi
        };
        atomic {                                                     /* commit, or roll back */
            if
            :: got ->
                assert(fence[name] == mine);                         /* no decision of a registration that was replaced */
                assert(holder[task] == name);                        /* nor after the task has left its owner */
                state[task] = ENDED;
                holder[task] = NONE;
                effects[task] = effects[task] + 1;
                assert(effects[task] == 1);                          /* no task ends twice */
                task_lock[task] = NONE
            :: else -> skip
            fi;
            unshare_owner(name);
            got = false
        }
    :: else -> skip
    fi
}

proctype Program(byte name; bool may_be_killed) {
    byte mine, task;
    bool got, was_ready;
    register(name, mine);
    find_held(name, mine, task);                                     /* the tasks of the registration before */
    do
    :: task != NONE ->
        if
        :: complete(name, mine, task, got); find_held(name, mine, task)
        :: may_be_killed -> goto killed                              /* with a task in hand */
        :: atomic { is_current(name, mine) && lapsed[name] && owner_lock[name] == NONE -> lapsed[name] = false }
        :: fence[name] == mine && !leased[name] -> register(name, mine)  /* and it still has the task in hand */
        fi
    :: task == NONE && is_current(name, mine) && !(state[0] == ENDED && state[1] == ENDED) ->
        poll(name, mine, task, got, was_ready);
        if
        :: task == NONE && (state[0] == ACTIVE || state[1] == ACTIVE) ->
            /* nothing to do until the task that blocks the identifier has left its owner */
            state[0] != ACTIVE && state[1] != ACTIVE || !is_current(name, mine)
        :: else -> skip
        fi
    :: task == NONE && state[0] == ENDED && state[1] == ENDED -> break
    :: task == NONE && fence[name] != mine -> break                  /* a later registration has replaced this one */
    :: task == NONE && fence[name] == mine && !leased[name] && !(state[0] == ENDED && state[1] == ENDED) ->
        register(name, mine);
        find_held(name, mine, task)
    od;
killed:
    atomic { working = working - 1; mine = 0; task = NONE; got = false }
}

/* A lease lapses at any moment. It lapses for certain when nothing else can happen: its program was killed. */
active proctype Time() {
    do
    :: atomic { lapses < LAPSES && leased[0] && !lapsed[0] -> lapsed[0] = true; lapses = lapses + 1 }
    :: atomic { lapses < LAPSES && leased[1] && !lapsed[1] -> lapsed[1] = true; lapses = lapses + 1 }
    :: atomic { timeout ->
        if
        :: leased[0] && !lapsed[0] -> lapsed[0] = true
        :: leased[1] && !lapsed[1] -> lapsed[1] = true
        :: else -> break
        fi }
    od
}

#ifndef NO_EXPIRY
/* Ends lapsed leases: finds one, locks its owner, looks again, and makes its tasks READY. */
active proctype Expiry() {
    byte name, task;
end:
    do
    :: atomic {
            if
            :: leased[0] && lapsed[0] -> name = 0
            :: leased[1] && lapsed[1] -> name = 1
            fi
        };
        atomic { owner_lock[name] == NONE && owner_shares[name] == 0 -> owner_lock[name] = _pid };
        atomic {
            if
#ifdef NO_LAPSE_CHECK
            :: true ->
#else
            :: leased[name] && lapsed[name] ->
#endif
                assert(lapsed[name]);                                /* a lease that was renewed does not end */
                leased[name] = false;
                lapsed[name] = false;
                for (task : 0 .. TASKS - 1) {
                    if
                    :: state[task] == ACTIVE && holder[task] == name -> state[task] = READY; holder[task] = NONE
                    :: else -> skip
                    fi
                }
#ifndef NO_LAPSE_CHECK
            :: else -> skip
#endif
            fi;
            owner_lock[name] = NONE;
            name = 0;
            task = 0
        }
    od
}
#endif

/* A transaction that commits task 0 at any moment. */
active proctype Push() {
    state[0] = READY
}

init {
    atomic {
        state[1] = READY;
        working = 3;
        run Program(0, true);
        run Program(0, true);
        run Program(1, false)
    };
    working == 0;
    assert(state[0] == ENDED && state[1] == ENDED)                   /* no task is lost */
}
