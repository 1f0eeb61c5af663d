int   Misshapen( int x )
{ return x ; }
