# A rank that notes its own life outside of the disk. Arguments: the directory of notes, seconds.
notes=$1
me="$UNIDLE_JOB $UNIDLE_ATTEMPT $UNIDLE_RANK"
pids="$notes/pids.$UNIDLE_JOB.$UNIDLE_RANK"
echo $$ >> "$pids"
echo "start $me $$" >> "$notes/ranks"
while read -r pid; do
    [ "$pid" != $$ ] || continue
    # a process that has ended and is not waited for does not run
    if read -r stat < "/proc/$pid/stat"; then
        case "$stat" in
        *") Z "* | *") X "*) ;;
        *) echo "double $me $$ $pid" >> "$notes/ranks" ;;
        esac
    fi 2> /dev/null
done < "$pids"
: >> "$notes/started.$UNIDLE_JOB"
echo step 1
sleep "$2" &
wait $!
echo step 2
echo "end $me $$" >> "$notes/ranks"
